"""Files of the tensors that clients keep or upload: one per client and round.

A directory holds what the clients of a round returned: a safetensors file per
client, and manifest.json, which names client, size and SHA-256 of each.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tff_fedfish import files
from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoint_writer

MANIFEST_NAME = 'manifest.json'
ADVICE = 'Restore it, or start the run again in another --workdir.'
"""Remedy where a state cannot be used."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClientFile:
  """Entry of a manifest: the state of one client after one round."""

  file: str
  """Its name in the directory of the round."""
  num_bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Manifest:
  """Contents of manifest.json."""

  schema_version: int = 1
  clients: Mapping[str, ClientFile]
  """Keys are client ids in hexadecimal digits."""


class DamagedStateError(UserError):
  """A client's state or upload that is not as it was written."""

  def __init__(
    self, client_id: bytes, path: pathlib.Path, what: str, kind: str = 'state'
  ):
    round_num = int(path.parent.name.removeprefix('round_'))
    super().__init__(
      f'The {kind} of client {client_id_to_text(client_id)!r} after round '
      f'{round_num}, {str(path)!r}, {what}. {ADVICE}'
    )


class RoundStates:
  """Writes the states after a round, which count once they are committed.

  A file is written and hashed in a thread, while the next client trains; at
  most one is under way. A `with` block that is left abandons what was not
  committed.
  """

  def __init__(
    self,
    path: pathlib.Path,
    on_commit: Callable[[dict[str, ClientFile]], None] = lambda entries: None,
  ):
    """Makes a temporary directory beside `path`.

    Args:
      path: The directory of the round.
      on_commit: Called with the entries of the manifest once it is there.

    Raises:
      OSError: If nothing can be written.
    """
    self.path, self._on_commit = path, on_commit
    self._directory = pathlib.Path(
      tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}.')
    )
    self._entries: dict[str, ClientFile] = {}
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'write_state')
    self._writing: concurrent.futures.Future | None = None

  def add(
    self, index: int, client_id: bytes, tensors: Mapping[str, np.ndarray]
  ) -> None:
    """Writes the state of a client; a second one replaces the first.

    Args:
      index: Position in the cohort, which names the file.
      client_id: The client.
      tensors: Arrays by name, of types that a checkpoint can hold. They must
        not change before the next call.

    Raises:
      OSError: If the state before it could not be written, such as on a full
        disk; names the file.
    """
    self.wait()
    path = self._directory / f'{index:04d}.safetensors'
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    self._writing = self._thread.submit(self._write, client_id, path, arrays)

  def take_back(self, client_id: bytes) -> None:
    """Removes the state of a client, which keeps what it had.

    Raises:
      OSError: If a state could not be written; names the file.
    """
    self.wait()
    entry = self._entries.pop(client_id.hex(), None)
    if entry is not None:
      (self._directory / entry.file).unlink()

  def files(self) -> dict[bytes, pathlib.Path]:
    """Returns the files written so far by client; they move with `commit`.

    Raises:
      OSError: If a state could not be written; names the file.
    """
    self.wait()
    return {
      bytes.fromhex(name): self._directory / entry.file
      for name, entry in self._entries.items()
    }

  def commit(self) -> None:
    """Makes the states those after the round, by one rename.

    A round in which no client kept anything leaves nothing.

    Raises:
      OSError: If a state or the manifest cannot be written; names the file.
    """
    self.wait()
    if not self._entries:
      self.abandon()
      return
    self._thread.shutdown()
    manifest = _Manifest(clients=dict(sorted(self._entries.items())))
    try:
      files.write_json(
        self._directory / MANIFEST_NAME, dataclasses.asdict(manifest)
      )
      os.chmod(self._directory, 0o777 & ~files.umask())
      os.replace(self._directory, self.path)
    except OSError as error:
      raise OSError(error.errno, error.strerror, str(self.path)) from error
    self._on_commit(self._entries)

  def __enter__(self) -> 'RoundStates':
    return self

  def __exit__(self, *_) -> None:
    self.abandon()

  def abandon(self) -> None:
    """Removes what was written, unless it was committed."""
    self._thread.shutdown()
    self._entries = {}
    shutil.rmtree(self._directory, ignore_errors=True)

  def wait(self) -> None:
    """Waits for the file that is being written.

    Raises:
      OSError: If it could not be written; names the file.
    """
    writing, self._writing = self._writing, None
    if writing is not None:
      writing.result()

  def _write(self, client_id, path, arrays):
    digest, num_bytes = hashlib.sha256(), 0
    try:
      with open(path, 'wb') as stream:
        # Not by the library, which copies all tensors first.
        for chunk in checkpoint_writer.state_chunks(arrays):
          stream.write(chunk)
          digest.update(chunk)
          num_bytes += len(chunk)
    except OSError as error:
      raise OSError(error.errno, error.strerror, str(path)) from error
    self._entries[client_id.hex()] = ClientFile(
      file=path.name, num_bytes=num_bytes, sha256=digest.hexdigest()
    )


def read_manifest(directory: pathlib.Path) -> Mapping[str, ClientFile]:
  """Returns the entries of a round's manifest by client id in hexadecimal.

  Raises:
    OSError, ValueError: If it cannot be read.
  """
  path = directory / MANIFEST_NAME
  clients = files.read_json(path, schema=_Manifest).clients
  for name in clients:
    bytes.fromhex(name)
  return clients


def read(
  path: str | os.PathLike, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
  """Returns the named tensors of a client's file; None: all."""
  from safetensors import safe_open

  with safe_open(path, framework='np') as state:
    names = state.keys() if names is None else names
    return {name: state.get_tensor(name) for name in names}


def require_as_written(
  client_id: bytes,
  path: pathlib.Path,
  entry: ClientFile,
  kind: str = 'state',
  *,
  reads: bool = True,
) -> None:
  """Raises DamagedStateError unless a file is as its manifest says.

  Of a file that it does not read it compares the size only. `kind` is 'state'
  or 'upload', for the message.
  """
  sha256 = entry.sha256 if reads else None
  try:
    what = files.difference(path, entry.num_bytes, sha256)
  except OSError as error:
    what = f'cannot be read ({error.strerror})'
    raise DamagedStateError(client_id, path, what, kind) from error
  if what:
    raise DamagedStateError(client_id, path, what, kind)


def require_shapes(
  client_id: bytes,
  path: str | os.PathLike,
  wanted: Mapping[str, tuple[int, ...]],
  kind: str = 'state',
) -> None:
  """Raises UserError unless a client's file has tensors of these shapes."""
  found = shapes(path)
  if found != wanted:
    name = min(
      name for name in {*found, *wanted} if found.get(name) != wanted.get(name)
    )
    raise UserError(
      f'The {kind} of client {client_id_to_text(client_id)!r} in {str(path)!r} '
      f'is of another model or method: tensor {name!r} must have shape '
      f'{_show(wanted.get(name))}, but has {_show(found.get(name))}. {ADVICE}'
    )


def shapes(path: str | os.PathLike) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a client's file."""
  from safetensors import safe_open

  with safe_open(path, framework='np') as state:
    return {
      name: tuple(state.get_slice(name).get_shape()) for name in state.keys()
    }


def position(path: str | os.PathLike, name: str) -> tuple[int, int]:
  """Returns where a tensor of a client's file begins and ends, in bytes."""
  with open(path, 'rb') as stream:
    num_bytes = int.from_bytes(stream.read(8), 'little')
    begin, end = json.loads(stream.read(num_bytes))[name]['data_offsets']
  return 8 + num_bytes + begin, 8 + num_bytes + end


def _show(shape):
  return 'none' if shape is None else str(list(shape))
