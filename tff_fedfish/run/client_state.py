"""Tensors that clients keep between rounds, on disk.

RUN/client_states/round_00000012/ holds what the clients of round 12 kept, a
file per client; see `store.py`. A version is (client, round): a client of round
r starts from its newest version of an earlier round, whatever else is on disk,
so that a round that is run again finds what it found before.
"""

import bisect
import hashlib
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping

from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, store
from tff_fedfish.run.store import RoundStore, RoundWriter
from tff_fedfish.run.tensor_files import ADVICE, DamagedError, StoredFile


class ClientStates:
  """The states of a run's clients; one writer, and readers while it waits.

  Memory holds an index of about half a kilobyte for each version, and no
  tensors. An OSError names what cannot be written or removed.

  Attributes:
    num_bytes: Bytes of all files of clients.
  """

  def __init__(self, run_directory: str | os.PathLike, last_round: int = 10**9):
    """Reads the manifests; touches nothing.

    Args:
      run_directory: The run's. Its `client_states` need not exist.
      last_round: Later rounds are not read, as a run that continues after this
        one discards them.

    Raises:
      UserError: If a manifest cannot be read.
    """
    self._store = RoundStore(
      pathlib.Path(run_directory).resolve() / store.CLIENT_STATES
    )
    self._files: dict[int, dict[bytes, StoredFile]] = {}
    """Files on disk by round and client."""
    self._rounds: dict[bytes, list[int]] = {}
    """Rounds of each client's versions, ascending."""
    self.num_bytes = 0
    self._unsynced: list[int] = []
    # The round that is being written.
    self._pending: tuple[int, RoundWriter] | None = None
    # What was read whole or written here is not read again to be checked.
    self._checked: set[tuple[bytes, int]] = set()
    for round_num in self._store.rounds():
      if round_num <= last_round:
        self._add(round_num, self._read(round_num))
    for client_id, rounds in list(self._rounds.items()):
      for round_num in rounds[:-1]:
        # What was superseded may have been removed.
        if not self._path(client_id, round_num).exists():
          self._forget(client_id, round_num)

  @property
  def directory(self) -> pathlib.Path:
    """The run's `client_states`."""
    return self._store.directory

  def path_for(
    self, client_id: bytes, before_round: int
  ) -> pathlib.Path | None:
    """Returns the file with which a client starts a round, checked.

    Returns:
      Its newest version of an earlier round; None if there is none. A file is
      read to be checked once, unless it was written here. Of a round that is
      not committed it is a temporary one.

    Raises:
      DamagedError: If the file is missing or not as it was written.
    """
    pending = self._pending_files(before_round - 1)
    if client_id in pending:
      return pending[client_id]
    round_num = self._newest(client_id, before_round - 1)
    if round_num is None:
      return None
    key = client_id, round_num
    path = self._files[round_num][client_id].require_whole(
      self._store.path(round_num), reads=key not in self._checked
    )
    self._checked.add(key)
    return path

  def clients_of(self, round_num: int) -> list[bytes]:
    """Returns the clients that have a version of this very round, sorted."""
    files = self._files.get(round_num, {})
    return sorted(files.keys() | self._pending_files(round_num).keys())

  def begin(self, round_num: int) -> RoundWriter:
    """Returns a writer of the states after a round, for `commit`."""
    writer = self._store.begin(round_num)
    self._pending = round_num, writer
    return writer

  def commit(self) -> None:
    """Makes the states those after the round that was begun.

    A round in which no client kept anything leaves nothing.
    """
    round_num, writer = self._pending
    files = store.by_client(writer.commit())
    self._pending = None
    if files:
      self._unsynced.append(round_num)
    self._add(round_num, files)
    self._checked |= {(client_id, round_num) for client_id in files}

  def discard_after(self, round_num: int) -> None:
    """Removes the versions of later rounds, and what killed runs left."""
    self._store.discard_after(round_num)
    for later in [r for r in self._files if r > round_num]:
      for client_id in list(self._files[later]):
        self._forget(client_id, later)

  def collect(self, kept_rounds: Collection[int]) -> None:
    """Removes superseded versions.

    Args:
      kept_rounds: Rounds after which a run may go on, beside the newest: the
        versions that were the newest then are kept.
    """
    for client_id, rounds in list(self._rounds.items()):
      if len(rounds) == 1:
        continue
      kept = {self._newest(client_id, r) for r in kept_rounds} | {rounds[-1]}
      for round_num in [r for r in rounds if r not in kept]:
        self._path(client_id, round_num).unlink(missing_ok=True)
        self._forget(client_id, round_num)
        if round_num not in self._files:
          self._store.remove(round_num)

  def sync(self) -> None:
    """Flushes to the disk what was committed since the last call."""
    for round_num in self._unsynced:
      # If not superseded meanwhile.
      if round_num in self._files:
        self._store.sync(round_num)
    self._unsynced.clear()

  def summary(self, round_num: int) -> dict[str, int | str]:
    """Returns what a checkpoint keeps of the states after its round.

    Returns:
      `num_clients`, and `digest`: the SHA-256 of client, round and SHA-256 of
      the file of each.
    """
    digest, num_clients = hashlib.sha256(), 0
    for client_id, version in self._versions_after(round_num):
      sha256 = self._files[version][client_id].sha256
      digest.update(f'{client_id.hex()} {version} {sha256}\n'.encode())
      num_clients += 1
    return {'num_clients': num_clients, 'digest': digest.hexdigest()}

  def require_as_after(
    self, round_num: int, summary: Mapping[str, int | str] | None
  ) -> None:
    """Raises UserError unless a round's states are as its checkpoint says.

    Their sizes are looked at, not all of their bytes: `path_for` does that.
    """
    found = self.summary(round_num)
    if found != summary:
      wanted = (summary or {}).get('num_clients', 0)
      raise UserError(
        f'{str(self.directory)!r} lacks the client states of round '
        f'{round_num}: {wanted} clients expected, {found["num_clients"]} '
        f'found{", others" * (found["num_clients"] == wanted)}. {ADVICE}'
      )
    for client_id, version in self._versions_after(round_num):
      entry = self._files[version][client_id]
      entry.require_whole(self._store.path(version), reads=False)

  def verify(self, round_num: int) -> Iterator[int]:
    """Reads the states after a round, and yields the size of each.

    Raises:
      DamagedError: At the first that is not as it was written.
    """
    for client_id, version in self._versions_after(round_num):
      self.path_for(client_id, round_num + 1)
      yield self._files[version][client_id].num_bytes

  def _pending_files(self, round_num):
    """Returns the files by client of a round that is being written."""
    if self._pending is None or self._pending[0] != round_num:
      return {}
    return store.by_client(self._pending[1].files())

  def _newest(self, client_id, last_round):
    """Returns the round of a client's newest version up to a round, or None."""
    rounds = self._rounds.get(client_id, ())
    index = bisect.bisect_right(rounds, last_round)
    return rounds[index - 1] if index else None

  def _versions_after(self, round_num):
    """Yields (client, round of its version after a round), by client."""
    for client_id in sorted(self._rounds):
      version = self._newest(client_id, round_num)
      if version is not None:
        yield client_id, version

  def _add(self, round_num, files):
    for client_id, entry in files.items():
      self._files.setdefault(round_num, {})[client_id] = entry
      self._rounds.setdefault(client_id, []).append(round_num)
      self.num_bytes += entry.num_bytes

  def _forget(self, client_id, round_num):
    self.num_bytes -= self._files[round_num].pop(client_id).num_bytes
    self._rounds[client_id].remove(round_num)
    self._checked.discard((client_id, round_num))
    if not self._files[round_num]:
      del self._files[round_num]
    if not self._rounds[client_id]:
      del self._rounds[client_id]

  def _read(self, round_num):
    try:
      return store.by_client(self._store.manifest(round_num).files)
    except DamagedError:
      if self._store.path(round_num).exists():
        raise
      # Superseded meanwhile, by a run that goes on.
      return {}

  def _path(self, client_id, round_num):
    entry = self._files[round_num][client_id]
    return self._store.path(round_num) / entry.file


def states_of_checkpoint(checkpoint: checkpoints.Checkpoint) -> ClientStates:
  """Returns the states with which a run would continue from a checkpoint.

  Raises:
    UserError: If they are damaged, or were removed, as those before the last
      checkpoints are.
  """
  directory, round_num = checkpoint.path.parent, checkpoint.round_num
  states = ClientStates(directory.parent, round_num)
  try:
    states.require_as_after(round_num, checkpoint.contents.get('client_states'))
  except UserError as error:
    newest = checkpoints.list_rounds(directory)[-1]
    # Superseded ones are gone; a file that is there is damaged.
    is_there = isinstance(error, DamagedError) and error.path.exists()
    if round_num == newest or is_there:
      raise
    raise UserError(
      f'`--checkpoint` is of round {round_num}, whose client states are no '
      f'longer stored. Name the last checkpoint, of round {newest}.'
    ) from error
  return states
