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


def name_of(round_num: int) -> str:
  """Returns the name of a round's checkpoint, `round_00000100`."""
  return f'round_{round_num:08d}'


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
  types = {'round': int, 'state': dict, 'tensors': dict, 'contents': dict}
  if missing := types.keys() - description.keys():
    raise DamagedError(path, f'{DESCRIPTION_FILE} has no {min(missing)!r}')
  for name, expected in types.items():
    value = description[name]
    if type(value) is not expected or (
      name == 'state' and not {'num_bytes', 'sha256'} <= value.keys()
    ):
      raise DamagedError(path, f'{DESCRIPTION_FILE} has a wrong {name!r}')
  round_num = description['round']
  if path.name.startswith('round_') and path.name != name_of(round_num):
    raise DamagedError(path, f'{DESCRIPTION_FILE} is of round {round_num}')
  return description


def verify(path: pathlib.Path) -> dict[str, Any]:
  """Returns `checkpoint.json`, once the tensor file has the sum it names."""
  description = read_description(path)
  file, expected = path / STATE_FILE, description['state']
  if not file.is_file():
    raise DamagedError(path, f'{STATE_FILE} is missing')
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


@contextlib.contextmanager
def replace_directory(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary directory that becomes `path`, synced to disk.

  Like `files.write_directory_atomically`, but `path` may exist, and its parent
  need not.

  Raises:
    OSError: If it cannot be written; names the checkpoint.
  """
  aside = None
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.write_directory_atomically(path) as temporary:
      yield temporary
      _sync_directory(temporary)
      if path.exists():
        aside = tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}.')
        os.replace(path, aside)
    _sync_directory(path.parent)
  except BaseException as error:
    if aside and not path.exists():
      os.replace(aside, path)
    if not isinstance(error, OSError):
      raise
    code = error.errno or errno.EIO
    raise OSError(
      code,
      f'{os.strerror(code)}; the checkpoint was not written, and nothing of it '
      'is left',
      str(path),
    ) from error
  if aside:
    shutil.rmtree(aside, ignore_errors=True)


def write(
  path: pathlib.Path,
  description: Mapping[str, Any],
  arrays: Mapping[str, np.ndarray],
  before_chunk: Callable[[], None],
) -> None:
  """Writes both files into an existing directory, synced to disk.

  The tensors are not written by the library of the format, whose bytes these
  are: it writes all at once, so that nobody could give up in the middle, and is
  not safe in a thread that the end of the process may cut short.
  """
  digest = hashlib.sha256()
  num_bytes = num_unsynced = 0
  with open(path / STATE_FILE, 'wb') as stream:
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
  state = {'num_bytes': num_bytes, 'sha256': digest.hexdigest()}
  files.write_json(
    path / DESCRIPTION_FILE,
    {'schema_version': _SCHEMA_VERSION, 'state': state, **description},
  )


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


def _sync_directory(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
