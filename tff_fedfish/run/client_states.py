"""Tensors that clients keep between rounds, on disk.

RUN/client_states/round_00000012/ holds what the clients of round 12 kept, see
`client_state_files.py`. The directory is written under a temporary name and
renamed last. A version is (client, round): a client of round r starts from its
newest version of an earlier round, whatever else is on disk, so that a round
that is run again finds what it found before.
"""

import hashlib
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from tff_fedfish import files
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoints, client_state_files
from tff_fedfish.run.client_state_files import (
  ADVICE,
  ClientFile,
  RoundStates,
)

DIRECTORY_NAME = 'client_states'


class Version(NamedTuple):
  """A client's state after a round."""

  round_num: int
  entry: ClientFile


class ClientStates:
  """The states of a run's clients; one writer, and readers while it waits.

  Memory holds an index of about half a kilobyte for each version, and no
  tensors.
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
    self.directory = pathlib.Path(run_directory).resolve() / DIRECTORY_NAME
    # By client, ascending by round.
    self._versions: dict[bytes, list[Version]] = {}
    self._unsynced: list[pathlib.Path] = []
    # Kept up to date: every round asks, and the clients may be millions.
    self._num_bytes = 0
    # The round that is being written, and its writer.
    self._pending: tuple[int, RoundStates] | None = None
    # What was read whole or written here is not read again to be checked.
    self._checked: set[tuple[bytes, int]] = set()
    for round_num in checkpoints.list_rounds(self.directory):
      if round_num <= last_round:
        self._add(round_num, self._read_manifest(round_num))
    for client_id, versions in self._versions.items():
      # What was superseded may have been removed.
      kept = [v for v in versions[:-1] if self._path(v).exists()]
      self._versions[client_id] = [*kept, versions[-1]]
    self._num_bytes = self._sum()

  @property
  def num_bytes(self) -> int:
    """Bytes of all files of clients."""
    return self._num_bytes

  def path_for(
    self, client_id: bytes, before_round: int
  ) -> pathlib.Path | None:
    """Returns the file with which a client starts a round, checked.

    Returns:
      Its newest version of an earlier round; None if there is none. A file is
      read to be checked once, unless it was written here. Of a round that is
      not committed it is a temporary one.

    Raises:
      DamagedStateError: If the file is missing or not as it was written.
    """
    pending = self._pending_files(before_round - 1)
    if client_id in pending:
      return pending[client_id]
    version = self._version(client_id, before_round)
    if version is None:
      return None
    key = client_id, version.round_num
    path = self._path(version)
    client_state_files.require_as_written(
      client_id, path, version.entry, reads=key not in self._checked
    )
    self._checked.add(key)
    return path

  def clients_of(self, round_num: int) -> list[bytes]:
    """Returns the clients that have a version of this very round, sorted."""
    committed = {
      client_id
      for client_id, versions in self._versions.items()
      if any(version.round_num == round_num for version in versions)
    }
    return sorted(committed | self._pending_files(round_num).keys())

  def begin(self, round_num: int) -> RoundStates:
    """Returns a writer of the states after a round.

    Raises:
      OSError: If nothing can be written.
    """
    self.directory.mkdir(exist_ok=True)

    def on_commit(entries):
      self._pending = None
      self._unsynced.append(self._round_directory(round_num))
      self._add(round_num, entries)
      self._checked |= {(bytes.fromhex(name), round_num) for name in entries}

    writer = RoundStates(self._round_directory(round_num), on_commit)
    self._pending = round_num, writer
    return writer

  def discard_after(self, round_num: int) -> None:
    """Removes the versions of later rounds, and what killed runs left.

    Raises:
      OSError: If something cannot be removed.
    """
    for later in checkpoints.list_rounds(self.directory):
      if later > round_num:
        checkpoints.remove_round(self.directory, later)
    checkpoints.remove_leftovers(self.directory)
    kept = {
      client_id: [v for v in versions if v.round_num <= round_num]
      for client_id, versions in self._versions.items()
    }
    self._versions = {c: versions for c, versions in kept.items() if versions}
    self._num_bytes = self._sum()
    self._checked = {key for key in self._checked if key[1] <= round_num}

  def collect(self, kept_rounds: Collection[int]) -> None:
    """Removes superseded versions.

    Args:
      kept_rounds: Rounds after which a run may go on, beside the newest: the
        versions that were the newest then are kept.

    Raises:
      OSError: If something cannot be removed.
    """
    rounds = set()
    for client_id, versions in self._versions.items():
      if len(versions) == 1:
        continue
      kept = [
        version
        for version, successor in zip(versions, versions[1:], strict=False)
        if any(
          version.round_num <= r < successor.round_num for r in kept_rounds
        )
      ]
      kept.append(versions[-1])
      for version in versions:
        if version not in kept:
          self._path(version).unlink(missing_ok=True)
          self._num_bytes -= version.entry.num_bytes
          self._checked.discard((client_id, version.round_num))
          rounds.add(version.round_num)
      self._versions[client_id] = kept
    for round_num in sorted(rounds):
      if not any(self._round_directory(round_num).glob('*.safetensors')):
        checkpoints.remove_round(self.directory, round_num)

  def sync(self) -> None:
    """Flushes to the disk what was committed since the last call.

    Raises:
      OSError: If it cannot be.
    """
    for path in self._unsynced:
      # Superseded meanwhile.
      if not path.exists():
        continue
      for entry in [*path.iterdir(), path]:
        files.sync(entry)
    if self._unsynced:
      files.sync(self.directory)
    self._unsynced.clear()

  def summary(self, round_num: int) -> dict[str, int | str]:
    """Returns what a checkpoint keeps of the states after its round.

    Returns:
      `num_clients`, and `digest`: the SHA-256 of client, round and SHA-256 of
      the file of each.
    """
    digest, num_clients = hashlib.sha256(), 0
    for client_id, version in self._newest(round_num):
      line = f'{client_id.hex()} {version.round_num} {version.entry.sha256}\n'
      digest.update(line.encode())
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
      held = f'that of {found["num_clients"]}'
      if found['num_clients'] == wanted:
        held = 'something else'
      raise UserError(
        f'{str(self.directory)!r} must hold what {wanted} clients kept after '
        f'round {round_num}, from which the run continues, but holds {held}. '
        f'{ADVICE}'
      )
    for client_id, version in self._newest(round_num):
      client_state_files.require_as_written(
        client_id, self._path(version), version.entry, reads=False
      )

  def verify(self, round_num: int) -> Iterator[int]:
    """Reads the states after a round, and yields the size of each.

    Raises:
      DamagedStateError: At the first that is not as it was written.
    """
    for client_id, version in self._newest(round_num):
      self.path_for(client_id, round_num + 1)
      yield version.entry.num_bytes

  def _pending_files(self, round_num):
    """Returns the files by client of a round that is being written."""
    if self._pending is None or self._pending[0] != round_num:
      return {}
    return self._pending[1].files()

  def _newest(self, round_num):
    """Yields (client, newest version after a round), sorted by client."""
    for client_id in sorted(self._versions):
      version = self._version(client_id, round_num + 1)
      if version is not None:
        yield client_id, version

  def _version(self, client_id, before_round):
    versions = self._versions.get(client_id, ())
    earlier = [v for v in versions if v.round_num < before_round]
    return earlier[-1] if earlier else None

  def _add(self, round_num, entries):
    for name, entry in entries.items():
      version = Version(round_num, entry)
      self._versions.setdefault(bytes.fromhex(name), []).append(version)
      self._num_bytes += entry.num_bytes

  def _sum(self):
    return sum(
      version.entry.num_bytes
      for versions in self._versions.values()
      for version in versions
    )

  def _read_manifest(self, round_num):
    directory = self._round_directory(round_num)
    try:
      return client_state_files.read_manifest(directory)
    except (OSError, ValueError) as error:
      if not directory.exists():
        # Superseded meanwhile, by a run that goes on.
        return {}
      path = directory / client_state_files.MANIFEST_NAME
      raise UserError(
        f'{str(path)!r} must name the states that clients kept after round '
        f'{round_num}, but cannot be read ({error}). {ADVICE}'
      ) from error

  def _round_directory(self, round_num):
    return checkpoints.path_of(self.directory, round_num)

  def _path(self, version):
    return self._round_directory(version.round_num) / version.entry.file


def states_of_checkpoint(found: checkpoints.Checkpoint) -> ClientStates:
  """Returns the states with which a run would continue from a checkpoint.

  Raises:
    UserError: If it is not the run's last checkpoint, as older states are
      removed, or the states are not those of then.
  """
  directory = found.path.parent
  newest = checkpoints.list_rounds(directory)[-1]
  if found.round_num != newest:
    raise UserError(
      '`--checkpoint` must be the last one of its run where what clients kept '
      f'is read, that of round {newest}, found that of round '
      f"{found.round_num}. Name the last one; without models of clients' own "
      'you may also leave `--barrier` out.'
    )
  states = ClientStates(directory.parent, newest)
  states.require_as_after(newest, found.contents.get('client_states'))
  return states
