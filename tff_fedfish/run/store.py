"""Files of a run's rounds; a round's files are there whole, or not at all.

Checkpoints, client states, uploads, features and their bases are stored alike:
DIRECTORY/round_00000012/ holds safetensors files and `manifest.json`, which has
the round, size and SHA-256 of every file, values kept beside them, and its own
SHA-256. The directory is written under a temporary name, with a leading dot,
and renamed last.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401  Lets NumPy know 'bfloat16'.
import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import UserError

CHECKPOINTS = 'checkpoints'
CLIENT_STATES = 'client_states'
UPLOADS = 'uploads'
FEATURES = 'features'
FEATURE_BASES = 'feature_bases'

MANIFEST = 'manifest.json'
ADVICE = 'Restore it, or start the run again in another --workdir.'

_Value = TypeVar('_Value')
_DIRECTORY_NAME = re.compile(r'round_(\d{8,})')
_CHUNK_BYTES = 2**26
# NumPy's names of types and their codes in safetensors, in the order in which
# that library writes tensors: wide types first, so that all are aligned.
_DTYPE_CODES = {
  'uint64': 'U64',
  'int64': 'I64',
  'float64': 'F64',
  'float32': 'F32',
  'uint32': 'U32',
  'int32': 'I32',
  'bfloat16': 'BF16',
  'float16': 'F16',
  'uint16': 'U16',
  'int16': 'I16',
  'int8': 'I8',
  'uint8': 'U8',
  'bool': 'BOOL',
}


class DamagedError(UserError):
  """A stored file that is not as it was written.

  Attributes:
    problem: The message without the advice.
  """

  def __init__(self, path: pathlib.Path, what: str, advice: str = ADVICE):
    self.problem = f'{str(path)!r} is damaged: it {what}'
    super().__init__(f'{self.problem}. {advice}')


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
  """A safetensors file in the directory of a round."""

  file: str
  """Its name."""
  num_bytes: int
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Contents of `manifest.json`."""

  schema_version: int = 1
  round: int
  files: Mapping[str, StoredFile]
  """By key: of clients, their ids in hexadecimal digits."""
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
      require_whole(self.path(round_num) / entry.file, entry)
      yield entry.num_bytes

  def begin(self, round_num: int, *, syncs: bool = False) -> 'RoundWriter':
    """Returns a writer of a round, which it replaces if it is stored already.

    Args:
      round_num: The round.
      syncs: Whether the files are on the disk before the round counts. If not,
        `sync` may flush them later.

    Raises:
      OSError: If nothing can be written.
    """
    self.directory.mkdir(parents=True, exist_ok=True)
    return RoundWriter(self, round_num, syncs)

  def sync(self, round_num: int) -> None:
    """Flushes a round to the disk.

    Raises:
      OSError: If it cannot be.
    """
    path = self.path(round_num)
    for entry in (*path.iterdir(), path, self.directory):
      files.sync(entry)

  def remove(self, round_num: int) -> None:
    """Removes a round.

    Raises:
      OSError: If it cannot be.
    """
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
    """Removes later rounds, and leftovers of killed runs.

    Raises:
      OSError: If a round cannot be removed.
    """
    for later in self.rounds():
      if later > round_num:
        self.remove(later)
    self.remove_leftovers()


class RoundWriter:
  """Writes the files of a round, which count once they are committed.

  A file is written and hashed in a thread while the caller goes on; at most one
  is under way. Leaving a `with` block removes what was not committed.
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
    if self._directory is not None:
      self.abandon()

  def add(self, key: str, file: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Starts to write a file; a second one of a key replaces the first.

    Args:
      key: Name of the file in the manifest.
      file: Its name in the directory.
      tensors: Arrays by name: booleans, integers of 8 to 64 bits, float16,
        bfloat16 (of ml_dtypes), float32 or float64. They must not change before
        the next call.

    Raises:
      TypeError: If a tensor is of another type.
      OSError: If the file before it could not be written, such as on a full
        disk; names the file.
    """
    self.wait()
    arrays = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    for name, array in arrays.items():
      if array.dtype.name not in _DTYPE_CODES:
        raise TypeError(
          f'Tensor {name!r} must be of a type that can be stored '
          f'({", ".join(sorted(_DTYPE_CODES))}), found {array.dtype.name}.'
        )
    self._writing = self._thread.submit(self._write, key, file, arrays)

  def add_client(
    self, index: int, client_id: bytes, tensors: Mapping[str, np.ndarray]
  ) -> None:
    """Starts to write the file of a client; see `add`.

    Its key is the id in hexadecimal digits; its place in the cohort, `index`,
    names the file.
    """
    self.add(client_id.hex(), f'{index:04d}.safetensors', tensors)

  def take_back(self, key: str) -> None:
    """Removes a file, if there is one.

    Raises:
      OSError: See `add`.
    """
    self.wait()
    entry = self._entries.pop(key, None)
    if entry is not None:
      (self._directory / entry.file).unlink()

  def files(self) -> dict[str, pathlib.Path]:
    """Returns the files written so far by key; they move with `commit`.

    Raises:
      OSError: See `add`.
    """
    self.wait()
    return {
      key: self._directory / entry.file for key, entry in self._entries.items()
    }

  def wait(self) -> None:
    """Waits for the file that is being written.

    Raises:
      OSError: See `add`.
    """
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
      self.abandon()
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
    self._thread.shutdown()
    self._directory = None
    if self._syncs:
      files.sync(self._store.directory)
    return entries

  def abandon(self) -> None:
    """Removes what was written."""
    self._thread.shutdown()
    self._entries = {}
    shutil.rmtree(self._directory, ignore_errors=True)
    self._directory = None

  def _write(self, key, file, arrays):
    digest, num_bytes, num_synced = hashlib.sha256(), 0, 0
    path = self._directory / file
    with files.naming(path), open(path, 'wb') as stream:
      # Not by the library, which copies all tensors first.
      for chunk in _chunks(arrays):
        stream.write(chunk)
        digest.update(chunk)
        num_bytes += len(chunk)
        # In parts: a process cannot end during a sync of gigabytes.
        if self._syncs and num_bytes - num_synced >= _CHUNK_BYTES:
          stream.flush()
          os.fdatasync(stream.fileno())
          num_synced = num_bytes
    self._entries[key] = StoredFile(
      file=file, num_bytes=num_bytes, sha256=digest.hexdigest()
    )


def by_client(files_by_key: Mapping[str, _Value]) -> dict[bytes, _Value]:
  """Returns values by client that are given by key; see `add_client`."""
  return {bytes.fromhex(key): value for key, value in files_by_key.items()}


def is_round(path: pathlib.Path) -> bool:
  """Says whether a path is a directory with the name of a round."""
  return bool(_DIRECTORY_NAME.fullmatch(path.name)) and path.is_dir()


def read_manifest(path: pathlib.Path, advice: str = ADVICE) -> Manifest:
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
  except OSError as error:
    what = f'cannot be read ({error.strerror})'
    raise DamagedError(file, what, advice) from error
  except (ValueError, TypeError, AttributeError) as error:
    what = f'cannot be read ({error})'
    raise DamagedError(file, what, advice) from error
  match = _DIRECTORY_NAME.fullmatch(path.name)
  if match and int(match[1]) != manifest.round:
    raise DamagedError(file, f'is of round {manifest.round}', advice)
  return manifest


def require_whole(
  path: pathlib.Path,
  entry: StoredFile,
  *,
  reads: bool = True,
  advice: str = ADVICE,
) -> None:
  """Raises DamagedError unless a file is as its manifest says.

  If `reads` is false only its size is compared.
  """
  sha256 = entry.sha256 if reads else None
  try:
    what = files.difference(path, entry.num_bytes, sha256)
  except OSError as error:
    what = f'cannot be read ({error.strerror})'
    raise DamagedError(path, what, advice) from error
  if what:
    raise DamagedError(path, what, advice)


def read_tensors(
  path: str | os.PathLike,
  names: Collection[str] | None = None,
  *,
  prefix: str = '',
) -> dict[str, np.ndarray]:
  """Returns tensors of a safetensors file, bit for bit as they were stored.

  Args:
    path: The file.
    names: The tensors to read. None: all whose names start with `prefix`.
    prefix: See `names`.

  Raises:
    DamagedError: If it cannot be read.
  """
  with _opened(path) as tensors:
    if names is None:
      names = [name for name in tensors.keys() if name.startswith(prefix)]
    return {name: tensors.get_tensor(name) for name in names}


def shapes(path: str | os.PathLike) -> dict[str, tuple[int, ...]]:
  """Returns the shape of every tensor of a safetensors file.

  Raises:
    DamagedError: If it cannot be read.
  """
  with _opened(path) as tensors:
    return {
      name: tuple(tensors.get_slice(name).get_shape())
      for name in tensors.keys()
    }


def position(path: str | os.PathLike, name: str) -> tuple[int, int]:
  """Returns where a tensor of a safetensors file begins and ends, in bytes."""
  with open(path, 'rb') as stream:
    num_bytes = int.from_bytes(stream.read(8), 'little')
    begin, end = json.loads(stream.read(num_bytes))[name]['data_offsets']
  return 8 + num_bytes + begin, 8 + num_bytes + end


@contextlib.contextmanager
def _opened(path):
  from safetensors import SafetensorError, safe_open

  try:
    with safe_open(path, framework='np') as tensors:
      yield tensors
  except (SafetensorError, OSError) as error:
    raise DamagedError(path, f'cannot be read ({error})') from error


def _chunks(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | np.ndarray]:
  """Yields a file of the safetensors format in parts, in order.

  The size of the header (8 bytes, little-endian), the header (JSON, filled
  up with spaces to a multiple of 8 bytes), the tensors.
  """
  ranks = {name: rank for rank, name in enumerate(_DTYPE_CODES)}
  ordered = sorted(
    arrays.items(), key=lambda item: (ranks[item[1].dtype.name], item[0])
  )
  header, end = {}, 0
  for name, array in ordered:
    begin, end = end, end + array.nbytes
    header[name] = {
      'dtype': _DTYPE_CODES[array.dtype.name],
      'shape': list(array.shape),
      'data_offsets': [begin, end],
    }
  text = json.dumps(header, ensure_ascii=False, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  yield len(text).to_bytes(8, 'little')
  yield text
  for _, array in ordered:
    # Copies what is not contiguous or not little-endian, one array at a time.
    array = np.asarray(array, array.dtype.newbyteorder('<'), order='C')
    # As bytes: a bfloat16 array is no buffer.
    data = array.reshape(-1).view(np.uint8)
    for begin in range(0, len(data), _CHUNK_BYTES):
      yield data[begin : begin + _CHUNK_BYTES]
