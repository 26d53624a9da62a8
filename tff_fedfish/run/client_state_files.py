"""Files of the tensors that clients keep: one per client and round."""

import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError
from tff_fedfish.run import checkpoint_writer

ADVICE = 'Restore it, or start the run again in another --workdir.'
"""Remedy where a state cannot be used."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClientFile:
  """Entry of a manifest: the state of one client after one round."""

  file: str
  """Its name in the directory of the round."""
  num_bytes: int
  sha256: str


class DamagedStateError(UserError):
  """A client's state that is not as it was written."""

  def __init__(self, client_id: bytes, path: pathlib.Path, what: str):
    round_num = int(path.parent.name.removeprefix('round_'))
    super().__init__(
      f'The state of client {client_id_to_text(client_id)!r} after round '
      f'{round_num}, {str(path)!r}, {what}. {ADVICE}'
    )


class RoundStates:
  """Writes the states after a round, which count once they are committed.

  A file is written and hashed in a thread, while the next client trains; at
  most one is under way.
  """

  def __init__(
    self,
    path: pathlib.Path,
    commit: Callable[[pathlib.Path, dict[str, ClientFile]], None],
  ):
    """Makes a temporary directory beside `path`.

    Args:
      path: The directory of the round.
      commit: Makes it of the temporary one and the entries of the manifest.

    Raises:
      OSError: If nothing can be written.
    """
    self.path, self._commit = path, commit
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
    self._wait()
    path = self._directory / f'{index:04d}.safetensors'
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    self._writing = self._thread.submit(self._write, client_id, path, arrays)

  def take_back(self, client_id: bytes) -> None:
    """Removes the state of a client, which keeps what it had.

    Raises:
      OSError: If a state could not be written; names the file.
    """
    self._wait()
    entry = self._entries.pop(client_id.hex(), None)
    if entry is not None:
      (self._directory / entry.file).unlink()

  def commit(self) -> None:
    """Makes the states those after the round, by one rename.

    A round in which no client kept anything leaves nothing.

    Raises:
      OSError: If a state or the manifest cannot be written; names the file.
    """
    self._wait()
    if not self._entries:
      self.abandon()
      return
    self._thread.shutdown()
    self._commit(self._directory, self._entries)

  def abandon(self) -> None:
    """Removes what was written."""
    self._thread.shutdown()
    shutil.rmtree(self._directory, ignore_errors=True)

  def _wait(self):
    """Waits for the file that is being written; raises its error."""
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


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
  """Returns the tensors of a client's file; bfloat16 becomes float32."""
  from safetensors import safe_open

  tensors = {}
  with safe_open(path, framework='np') as state:
    for name in state.keys():
      tensor = state.get_tensor(name)
      if tensor.dtype == ml_dtypes.bfloat16:
        tensor = tensor.astype(np.float32)
      tensors[name] = tensor
  return tensors


def shapes(path: str | os.PathLike) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a client's file."""
  from safetensors import safe_open

  with safe_open(path, framework='np') as state:
    return {
      name: tuple(state.get_slice(name).get_shape()) for name in state.keys()
    }


def rounded(tensor: np.ndarray, dtype: str) -> np.ndarray:
  """Returns a tensor as it is kept: floats, but no scalars, in `dtype`."""
  if dtype == 'bfloat16' and tensor.dtype == np.float32 and tensor.ndim:
    return tensor.astype(ml_dtypes.bfloat16)
  return tensor
