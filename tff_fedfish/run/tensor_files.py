"""Safetensors files: written in parts and hashed, read by name."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence

import ml_dtypes  # noqa: F401  Lets NumPy know 'bfloat16'.
import numpy as np

from tff_fedfish import files
from tff_fedfish.errors import UserError

ADVICE = (
  'Restore it, use another checkpoint, or start again in another --workdir.'
)

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
    path: The file.
    problem: The message without the advice.
  """

  def __init__(self, path: str | os.PathLike, what: str):
    self.path = pathlib.Path(path)
    self.problem = f'{os.fspath(path)!r} is damaged: it {what}'
    super().__init__(f'{self.problem}. {ADVICE}')


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
  """A file in a directory, as it was written."""

  file: str
  """Its name."""
  num_bytes: int
  sha256: str

  def require_whole(
    self, directory: pathlib.Path, *, reads: bool = True
  ) -> pathlib.Path:
    """Returns the file's path; raises DamagedError unless it is as written.

    If `reads` is false only its size is compared.
    """
    path = directory / self.file
    try:
      what = files.difference(
        path, self.num_bytes, self.sha256 if reads else None
      )
    except OSError as error:
      raise DamagedError(path, f'cannot be read ({error.strerror})') from error
    if what:
      raise DamagedError(path, what)
    return path


def write(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], *, syncs: bool = False
) -> StoredFile:
  """Writes arrays by name, without a copy of all of them in memory.

  With `syncs` what is written is flushed to the disk every 64 MiB, but for the
  end: a process cannot end during a sync of gigabytes.

  Raises:
    OSError: If it cannot be written; names the file.
    TypeError: If an array is neither of booleans, integers of 8 to 64 bits,
      float16, bfloat16 (of ml_dtypes), float32 nor float64.
  """
  for name, array in arrays.items():
    if array.dtype.name not in _DTYPE_CODES:
      raise TypeError(
        f'Tensor {name!r} must be of a type that can be stored, found '
        f'{array.dtype}.'
      )
  digest, num_bytes, num_synced = hashlib.sha256(), 0, 0
  with files.naming(path), open(path, 'wb') as stream:
    for chunk in _chunks(arrays):
      stream.write(chunk)
      digest.update(chunk)
      num_bytes += len(chunk)
      if syncs and num_bytes - num_synced >= _CHUNK_BYTES:
        stream.flush()
        os.fdatasync(stream.fileno())
        num_synced = num_bytes
  return StoredFile(
    file=path.name, num_bytes=num_bytes, sha256=digest.hexdigest()
  )


def read(
  path: str | os.PathLike,
  names: Collection[str] | None = None,
  *,
  prefix: str = '',
) -> dict[str, np.ndarray]:
  """Returns tensors of a file, bit for bit as they were written.

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
  """Returns the shape of every tensor of a file.

  Raises:
    DamagedError: If it cannot be read.
  """
  with _opened(path) as tensors:
    return {
      name: tuple(tensors.get_slice(name).get_shape())
      for name in tensors.keys()
    }


def require_shapes(
  source: str | os.PathLike,
  found: Mapping[str, tuple[int, ...]],
  wanted: Mapping[str, tuple[int, ...]],
  advice: str = ADVICE,
) -> None:
  """Raises UserError unless the tensors of a source have these shapes."""
  for name in sorted({*found, *wanted}):
    if found.get(name) != wanted.get(name):
      raise UserError(
        f'{str(source)!r} is of another model or method: tensor {name!r} must '
        f'have shape {shape_text(wanted.get(name))}, but has '
        f'{shape_text(found.get(name))}. {advice}'
      )


def shape_text(shape: Sequence[int] | None) -> str:
  """Returns the shape of a tensor as errors name it."""
  return 'none' if shape is None else str(list(shape))


def position(path: str | os.PathLike, name: str) -> tuple[int, int]:
  """Returns where a tensor of a file begins and ends, in bytes."""
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
  """Yields a file in parts, in order.

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
