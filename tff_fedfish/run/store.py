"""Files of a run's rounds; a round's files are there whole, or not at all.

Checkpoints, client states, uploads, features and their bases are stored alike:
DIRECTORY/round_00000012/ holds safetensors files and `manifest.json`, which has
the round, size and SHA-256 of every file, values kept beside them, and its own
SHA-256. The directory is written under a temporary name, with a leading dot,
and renamed last.
"""

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.printing import format_bytes
from tff_fedfish.run import tensor_files
from tff_fedfish.run.tensor_files import DamagedError, StoredFile

CHECKPOINTS = 'checkpoints'
CLIENT_STATES = 'client_states'
UPLOADS = 'uploads'
FEATURES = 'features'
FEATURE_BASES = 'feature_bases'

MANIFEST = 'manifest.json'

_Value = TypeVar('_Value')
_DIRECTORY_NAME = re.compile(r'round_(\d{8,})')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Contents of `manifest.json`."""

  schema_version: int = 1
  round: int
  files: Mapping[str, StoredFile]
  """Files by key; a client's key is its id in hexadecimal digits."""
  contents: Mapping[str, Any]
  """JSON values that are kept beside the files."""


class RoundStore:
  """Directories of rounds; one process writes, others may read."""

  def __init__(self, directory: str | os.PathLike):
    """Touches nothing; the directory need not exist."""
    self.directory = pathlib.Path(directory)

  def path(self, round_num: int) -> pathlib.Path:
    """Returns the directory of a round, DIRECTORY/round_00000012."""
    return self.directory / f'round_{round_num:08d}'

  def rounds(self) -> list[int]:
    """Returns the rounds that are stored, ascending."""
    names = (path.name for path in self.directory.glob('round_*'))
    matches = map(_DIRECTORY_NAME.fullmatch, names)
    return sorted(int(match[1]) for match in matches if match)

  def manifest(self, round_num: int) -> Manifest:
    """Returns a round's manifest; see `read_manifest`."""
    return read_manifest(self.path(round_num))

  def verify(self, round_num: int) -> Iterator[int]:
    """Reads the files of a round, and yields the size of each.

    Raises:
      DamagedError: At the first that is missing or not as it was written.
    """
    for entry in self.manifest(round_num).files.values():
      entry.require_whole(self.path(round_num))
      yield entry.num_bytes

  def begin(self, round_num: int, *, syncs: bool = False) -> 'RoundWriter':
    """Returns a writer of a round, which it replaces if it is stored already.

    With `syncs` the files are on the disk before the round counts; if not,
    `sync` may flush them later.

    Raises:
      OSError: If nothing can be written.
    """
    is_new = not self.directory.exists()
    self.directory.mkdir(parents=True, exist_ok=True)
    if syncs and is_new:
      files.sync(self.directory.parent)
    return RoundWriter(self, round_num, syncs)

  def sync(self, round_num: int) -> None:
    """Flushes a round to the disk; raises OSError if it cannot be."""
    path = self.path(round_num)
    for entry in (*path.iterdir(), path, *path.parents[:2]):
      files.sync(entry)

  def remove(self, round_num: int) -> None:
    """Removes a round; raises OSError if it cannot be."""
    # Renamed first: a removal that is cut short leaves no half round.
    path = self.path(round_num)
    aside = tempfile.mkdtemp(dir=self.directory, prefix=f'.{path.name}.')
    os.replace(path, aside)
    shutil.rmtree(aside, ignore_errors=True)

  def remove_leftovers(self) -> None:
    """Removes what killed runs left half written or half removed."""
    for leftover in self.directory.glob('.round_*'):
      shutil.rmtree(leftover, ignore_errors=True)

  def discard_after(self, round_num: int) -> None:
    """Removes later rounds and leftovers; raises OSError if it cannot."""
    for later in self.rounds():
      if later > round_num:
        self.remove(later)
    self.remove_leftovers()


class RoundWriter:
  """Writes the files of a round, which count once they are committed.

  A file is written and hashed in a thread while the caller goes on; at most one
  is under way. Its failure, an OSError that names the file, is raised by the
  next call. Leaving a `with` block removes what was not committed.

  Attributes:
    path: The directory of the round.
  """

  def __init__(self, store: RoundStore, round_num: int, syncs: bool):
    """Makes a temporary directory; see `RoundStore.begin`."""
    self._store, self._round, self._syncs = store, round_num, syncs
    self.path = store.path(round_num)
    self._directory = pathlib.Path(
      tempfile.mkdtemp(dir=store.directory, prefix=f'.{self.path.name}.')
    )
    self._entries: dict[str, StoredFile] = {}
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'write_round')
    self._writing: concurrent.futures.Future | None = None

  def __enter__(self) -> 'RoundWriter':
    return self

  def __exit__(self, *_) -> None:
    self._thread.shutdown()
    self._entries = {}
    # Nothing is there of a round that was committed.
    shutil.rmtree(self._directory, ignore_errors=True)

  def add(self, key: str, file: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Starts to write a file; a second one of a key replaces the first.

    Args:
      key: Name of the file in the manifest.
      file: Its name in the directory.
      tensors: Arrays by name; see `tensor_files.write`. They must not change
        before the next call.
    """
    self.wait()
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    self._writing = self._thread.submit(self._write, key, file, arrays)

  def add_client(
    self, index: int, client_id: bytes, tensors: Mapping[str, np.ndarray]
  ) -> None:
    """Starts to write the file of a client; see `add`.

    Its key is the id in hexadecimal digits; its place in the cohort, `index`,
    names the file.
    """
    self.add(client_id.hex(), f'{index:04d}.safetensors', tensors)

  def take_back(self, client_id: bytes) -> None:
    """Removes the file of a client, if there is one."""
    self.wait()
    entry = self._entries.pop(client_id.hex(), None)
    if entry is not None:
      (self._directory / entry.file).unlink()

  def files(self) -> dict[str, pathlib.Path]:
    """Returns the files written so far by key; they move with `commit`."""
    self.wait()
    return {
      key: self._directory / entry.file for key, entry in self._entries.items()
    }

  def wait(self) -> None:
    """Waits for the file that is being written."""
    writing, self._writing = self._writing, None
    if writing is not None:
      writing.result()

  def commit(
    self, contents: Mapping[str, Any] | None = None
  ) -> dict[str, StoredFile]:
    """Makes the files those of the round, by one rename.

    Args:
      contents: JSON values to keep beside the files.

    Returns:
      The files by key. A round without any leaves nothing.

    Raises:
      OSError: If something cannot be written; names the file.
      TypeError: If the contents are not JSON.
    """
    self.wait()
    entries = dict(sorted(self._entries.items()))
    if not entries:
      return {}
    manifest = Manifest(
      round=self._round, files=entries, contents=dict(contents or {})
    )
    value = files.with_hash(dataclasses.asdict(manifest))
    files.write_json(self._directory / MANIFEST, value)
    if self._syncs:
      for path in (*self._directory.iterdir(), self._directory):
        files.sync(path)
    os.chmod(self._directory, 0o777 & ~files.umask())
    if self.path.exists():
      self._store.remove(self._round)
    os.replace(self._directory, self.path)
    if self._syncs:
      files.sync(self._store.directory)
    return entries

  def _write(self, key, file, arrays):
    self._entries[key] = tensor_files.write(
      self._directory / file, arrays, syncs=self._syncs
    )


def require_room(
  run: pathlib.Path, num_bytes: int, what: str, round_num: int
) -> None:
  """Raises FailedError unless what a round writes fits on the run's disk."""
  free = shutil.disk_usage(run).free
  if num_bytes > free:
    raise FailedError(
      f'Round {round_num} takes up to {format_bytes(num_bytes)} of {what}, but '
      f'{format_bytes(free)} are free in {str(run)!r}. Free disk space; the '
      f'same command continues after round {round_num - 1}.'
    )


def by_client(files_by_key: Mapping[str, _Value]) -> dict[bytes, _Value]:
  """Returns values by client that are given by key; see `add_client`."""
  return {bytes.fromhex(key): value for key, value in files_by_key.items()}


def is_round(path: pathlib.Path) -> bool:
  """Says whether a path is a directory with the name of a round."""
  return bool(_DIRECTORY_NAME.fullmatch(path.name)) and path.is_dir()


def read_manifest(path: pathlib.Path) -> Manifest:
  """Returns the manifest in the directory of a round.

  Raises:
    DamagedError: If it is missing, not as it was written, or of another round.
    UserError: If it is of a newer version.
  """
  file = path / MANIFEST
  try:
    value = files.require_hash(files.parse_json(file.read_bytes()))
    manifest = files.from_json_object(value, schema=Manifest)
  except files.NewerSchemaError as error:
    raise UserError(f'{str(file)!r}: {error}. Update fedfish.') from error
  except (OSError, ValueError, TypeError, AttributeError) as error:
    what = getattr(error, 'strerror', None) or error
    raise DamagedError(file, f'cannot be read ({what})') from error
  match = _DIRECTORY_NAME.fullmatch(path.name)
  if match and int(match[1]) != manifest.round:
    raise DamagedError(file, f'is of round {manifest.round}')
  return manifest
