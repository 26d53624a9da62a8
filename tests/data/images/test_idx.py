"""idx files by hand, and what is said of files that are none."""

import gzip

import numpy as np
import pytest

from tff_fedfish.data.images.mnist import read_idx
from tff_fedfish.errors import UserError

# Two zeros, type 0x08, two dimensions, 2 x 3, six values.
_BYTES = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255])


def _read(path, dtype='uint8', num_dimensions=2):
  return read_idx(path, dtype=dtype, num_dimensions=num_dimensions)


@pytest.mark.parametrize('name', ['a', 'a.gz'])
@pytest.mark.parametrize('packed', [False, True])
def test_bytes_by_hand(tmp_path, name, packed):
  path = tmp_path / name
  path.write_bytes(gzip.compress(_BYTES) if packed else _BYTES)
  found = _read(path)
  assert found.dtype == np.uint8
  assert found.tolist() == [[1, 2, 3], [4, 5, 255]]


def test_ints_are_big_endian(tmp_path):
  path = tmp_path / 'a'
  # 0x00000102 = 258, and -1.
  path.write_bytes(bytes([0, 0, 12, 1, 0, 0, 0, 2, 0, 0, 1, 2]) + b'\xff' * 4)
  found = _read(path, 'int32', 1)
  assert found.dtype == np.dtype('int32') and found.dtype.isnative
  assert found.tolist() == [258, -1]


def test_nothing_may_be_in_it(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3]))
  assert _read(path).shape == (0, 3)


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    (b'', "a' must be an idx file, but it begins with the bytes ''. Check"),
    (b'\x89PNG\r\n', "an idx file, but it begins with the bytes '89 50 4e 47'"),
    (b'\0\0\x07\x02', "idx file, but it begins with the bytes '00 00 07 02'"),
    (b'\0\0\x0c\x02', 'hold uint8 in 2 dimensions, but it holds int32 in 2'),
    (b'\0\0\x08\x03', 'hold uint8 in 2 dimensions, but it holds uint8 in 3'),
    (_BYTES[:11], 'must hold 2 sizes, but it ends within them. Get the file'),
    (
      _BYTES[:-2],
      '2 x 3 values in 6 bytes, as its header says, .* only 4. Get',
    ),
    (_BYTES + b'\0', '2 x 3 values in 6 bytes, as .* says, but it holds more'),
    # A header alone must not make us reserve 2^64 bytes.
    (b'\0\0\x08\x02' + b'\xff' * 8 + b'ab', '4294967295 x 42949.* only 2'),
  ],
)
@pytest.mark.parametrize('pack', [bytes, gzip.compress])
def test_not_such_a_file(tmp_path, data, words, pack):
  path = tmp_path / 'a'
  path.write_bytes(pack(data))
  with pytest.raises(UserError, match=words):
    _read(path)


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    (gzip.compress(_BYTES, mtime=0)[:-9], 'end-of-stream marker'),
    (gzip.compress(_BYTES, mtime=0)[:-8] + b'\0' * 8, 'CRC check failed'),
    (b'\x1f\x8bnothing of the kind', 'Unknown compression method'),
  ],
)
def test_damaged_packing(tmp_path, data, words):
  path = tmp_path / 'a.gz'
  path.write_bytes(data)
  with pytest.raises(
    UserError,
    match=rf"a.gz' must be a whole, readable file, .*{words}.* Get it",
  ):
    _read(path)


def test_missing(tmp_path):
  with pytest.raises(UserError, match="b' must be a whole, readable.*No such"):
    _read(tmp_path / 'b')
