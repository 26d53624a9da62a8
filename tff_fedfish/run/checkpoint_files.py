"""The files of one checkpoint: writing, checking, and naming what is wrong."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import UserError

_SCHEMA_VERSION = 1
DESCRIPTION_FILE = 'checkpoint.json'
STATE_FILE = 'state.safetensors'

# NumPy's names of types and the codes of the format, in the order in which
# the library of the format writes tensors: wide types first, so that all are
# aligned.
DTYPE_CODES = {
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
# A second or less to write, hash and sync: how long it takes to give up.
_CHUNK_BYTES = 2**26


class DamagedError(UserError):
  """A checkpoint that is there but not as it was written.

  Args:
    path: The checkpoint's directory.
    what: What is wrong.

  Attributes:
    problem: The message without what to do about it.
  """

  def __init__(self, path: pathlib.Path, what: str):
    self.problem = f'the checkpoint {str(path)!r} is damaged: {what}'
    super().__init__(f'{self.problem}. Use another checkpoint of the run.')


def read_description(path: pathlib.Path) -> dict[str, Any]:
  """Returns `checkpoint.json`, checked for its version and its fields."""
  file = path / DESCRIPTION_FILE
  try:
    description = files.parse_json(file.read_text(encoding='utf-8'))
    version = description['schema_version']
  except FileNotFoundError as error:
    raise DamagedError(path, f'{DESCRIPTION_FILE} is missing') from error
  except OSError as error:
    raise DamagedError(
      path, f'{DESCRIPTION_FILE} cannot be read ({error.strerror})'
    ) from error
  except (ValueError, KeyError, TypeError) as error:
    raise DamagedError(path, f'{DESCRIPTION_FILE} is not readable') from error
  if not isinstance(version, int) or version > _SCHEMA_VERSION:
    raise UserError(
      f'the checkpoint {str(path)!r} has schema version {version}, but this '
      f'fedfish reads versions up to {_SCHEMA_VERSION}. Use the version of '
      'fedfish that wrote it, or a newer one.'
    )
  missing = {'round', 'state', 'tensors', 'contents'} - set(description)
  if missing:
    raise DamagedError(path, f'{DESCRIPTION_FILE} has no {min(missing)!r}')
  for name, is_right in (
    ('round', type(description['round']) is int),
    ('state', {'num_bytes', 'sha256'} <= _keys(description['state'])),
    ('tensors', isinstance(description['tensors'], dict)),
    ('contents', isinstance(description['contents'], dict)),
  ):
    if not is_right:
      raise DamagedError(path, f'{DESCRIPTION_FILE} has a wrong {name!r}')
  if path.name.startswith('round_') and path.name != _name(description):
    raise DamagedError(
      path, f'{DESCRIPTION_FILE} is of round {description["round"]}'
    )
  return description


def _keys(value: Any) -> set[str]:
  return set(value) if isinstance(value, dict) else set()


def _name(description: Mapping[str, Any]) -> str:
  return f'round_{description["round"]:08d}'


def verify(path: pathlib.Path) -> dict[str, Any]:
  """Returns `checkpoint.json`, once the tensor file has the sum it names."""
  description = read_description(path)
  file = path / STATE_FILE
  if not file.is_file():
    raise DamagedError(path, f'{STATE_FILE} is missing')
  expected = description['state']
  num_bytes = file.stat().st_size
  if num_bytes != expected['num_bytes']:
    raise DamagedError(
      path,
      f'{STATE_FILE} must have {expected["num_bytes"]} bytes, but has '
      f'{num_bytes}',
    )
  with open(file, 'rb') as stream:
    found = hashlib.file_digest(stream, 'sha256').hexdigest()
  if found != expected['sha256']:
    raise DamagedError(
      path,
      f'{STATE_FILE} must have SHA-256 {expected["sha256"]}, but has {found}',
    )
  return description


def write(
  path: pathlib.Path,
  description: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
  before_chunk: Callable[[], None],
) -> None:
  """Writes both files into an existing directory, synced to disk."""
  state = _write_state(path / STATE_FILE, arrays, before_chunk)
  files.write_json(
    path / DESCRIPTION_FILE,
    {'schema_version': _SCHEMA_VERSION, 'state': state, **description},
  )


def _write_state(file, arrays, before_chunk):
  """Writes the tensors; returns the file's size and SHA-256.

  Not by the library of the format, whose bytes these are: it writes all at
  once, so that nobody could give up in the middle, and is not safe in a
  thread that the end of the process may cut short.
  """
  digest = hashlib.sha256()
  num_bytes = num_unsynced = 0
  with open(file, 'wb') as stream:
    for chunk in _state_chunks(arrays):
      before_chunk()
      stream.write(chunk)
      digest.update(chunk)
      num_bytes += len(chunk)
      num_unsynced += len(chunk)
      # In parts: a process cannot end during a sync of gigabytes.
      if num_unsynced >= _CHUNK_BYTES:
        stream.flush()
        os.fdatasync(stream.fileno())
        num_unsynced = 0
    stream.flush()
    os.fsync(stream.fileno())
  return {'num_bytes': num_bytes, 'sha256': digest.hexdigest()}


def _state_chunks(
  arrays: Mapping[str, np.ndarray],
) -> Iterator[bytes | np.ndarray]:
  """Yields a file of the safetensors format in parts, in order.

  The size of the header (8 bytes, little-endian), the header (JSON, filled
  up with spaces to a multiple of 8 bytes), the tensors.
  """
  ranks = {name: rank for rank, name in enumerate(DTYPE_CODES)}
  names = sorted(arrays, key=lambda n: (ranks[arrays[n].dtype.name], n))
  header, end = {}, 0
  for name in names:
    array = arrays[name]
    begin, end = end, end + array.nbytes
    header[name] = {
      'dtype': DTYPE_CODES[array.dtype.name],
      'shape': list(array.shape),
      'data_offsets': [begin, end],
    }
  text = json.dumps(header, ensure_ascii=False, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  yield len(text).to_bytes(8, 'little')
  yield text
  for name in names:
    array = arrays[name]
    # Copies what is not contiguous or not little-endian, one array at a time.
    array = np.asarray(array, array.dtype.newbyteorder('<'), order='C')
    # As bytes: a bfloat16 array is no buffer.
    data = array.reshape(-1).view(np.uint8)
    for begin in range(0, len(data), _CHUNK_BYTES):
      yield data[begin : begin + _CHUNK_BYTES]


@contextlib.contextmanager
def replace_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Like `files.write_directory_atomically`, synced, and `path` may exist."""
  aside = None
  try:
    with files.write_directory_atomically(path) as temporary:
      yield temporary
      _sync_directory(temporary)
      if path.exists():
        aside = tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}.')
        os.replace(path, aside)
  except BaseException:
    if aside and not path.exists():
      os.replace(aside, path)
    raise
  _sync_directory(path.parent)
  if aside:
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def naming_failures(path: pathlib.Path) -> Iterator[None]:
  """Turns failures to write into an `OSError` that names the checkpoint."""
  try:
    yield
  except OSError as error:
    code = error.errno or errno.EIO
    raise OSError(
      code,
      f'{os.strerror(code)}; the checkpoint was not written, and nothing of it '
      'is left',
      str(path),
    ) from error


def _sync_directory(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
