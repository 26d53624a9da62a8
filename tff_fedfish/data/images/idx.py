"""Reads idx files, the format of MNIST and its relatives (LeCun & Cortes).

Two zero bytes, a byte for the type, a byte for the number of dimensions, their
sizes as big-endian int32, then the values in the same order, row by row.
"""

import gzip
import math
import os
from typing import BinaryIO

import numpy as np

from tff_fedfish.data.images.corpus_files import reading
from tff_fedfish.errors import UserError

_TYPES = {
  0x08: np.dtype('uint8'),
  0x09: np.dtype('int8'),
  0x0B: np.dtype('>i2'),
  0x0C: np.dtype('>i4'),
  0x0D: np.dtype('>f4'),
  0x0E: np.dtype('>f8'),
}
_MAGIC_BYTES = 4
_SIZE_BYTES = 4
_GZIP_MAGIC = b'\x1f\x8b'
_CHUNK_BYTES = 1 << 20


def read_idx(
  path: str | os.PathLike, *, dtype: str, num_dimensions: int
) -> np.ndarray:
  """Returns the array of an idx file.

  Args:
    path: The file, plain or packed by gzip, whatever its name.
    dtype: The type it must have, such as 'uint8' or 'int32'.
    num_dimensions: The number of dimensions it must have.

  Returns:
    The values, in the machine's byte order.

  Raises:
    UserError: If the file is no idx file, holds another type or shape, ends too
      early or too late, or cannot be read.
  """
  with reading(path), open(path, 'rb') as file:
    is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    if not is_packed:
      return _read(file, path, np.dtype(dtype), num_dimensions)
    with gzip.open(file) as unpacked:
      return _read(unpacked, path, np.dtype(dtype), num_dimensions)


def _read(
  file: BinaryIO, path: str | os.PathLike, dtype: np.dtype, num_dimensions: int
) -> np.ndarray:
  magic = file.read(_MAGIC_BYTES)
  if (
    len(magic) < _MAGIC_BYTES or magic[:2] != b'\0\0' or magic[2] not in _TYPES
  ):
    raise UserError(
      f'{str(path)!r} must be an idx file, but it begins with the bytes '
      f"'{magic.hex(' ')}'. Check which file it is."
    )
  stored = _TYPES[magic[2]]
  if stored.newbyteorder('=') != dtype or magic[3] != num_dimensions:
    raise UserError(
      f'{str(path)!r} must hold {dtype} in {num_dimensions} dimensions, but it '
      f'holds {stored.newbyteorder("=")} in {magic[3]}. Check which file it is.'
    )
  header = file.read(_SIZE_BYTES * num_dimensions)
  if len(header) < _SIZE_BYTES * num_dimensions:
    raise UserError(
      f'{str(path)!r} must hold {num_dimensions} sizes, but it ends within '
      'them. Get the file again.'
    )
  sizes = tuple(int(size) for size in np.frombuffer(header, '>u4'))
  num_bytes = math.prod(sizes) * stored.itemsize
  # One byte more than there should be shows whether there is more.
  data = _read_up_to(file, num_bytes + 1)
  if len(data) != num_bytes:
    found = 'more' if len(data) > num_bytes else f'only {len(data)}'
    raise UserError(
      f'{str(path)!r} must hold {" x ".join(map(str, sizes))} values in '
      f'{num_bytes} bytes, as its header says, but it holds {found}. Get the '
      'file again.'
    )
  return np.frombuffer(data, stored).reshape(sizes).astype(dtype)


def _read_up_to(file: BinaryIO, num_bytes: int) -> bytearray:
  """Returns as many bytes, or all that there are."""
  # In pieces: a header that is wrong must not make us reserve what it says.
  data = bytearray()
  while len(data) < num_bytes:
    piece = file.read(min(_CHUNK_BYTES, num_bytes - len(data)))
    if not piece:
      break
    data += piece
  return data
