"""Whole, joined, cut, corrupt and enormous files of every packing."""

import bz2
import functools
import gzip
import lzma
import random
import re
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest

from pipelines.raw_bytes import CHUNK_BYTES, read_chunks
from pipelines.source import Drop
from tff_fedfish.errors import UserError


def _lzma(data):
  return lzma.compress(data, format=lzma.FORMAT_ALONE)


_PACKS = {
  'plain': bytes,
  'gzip': gzip.compress,
  'xz': lzma.compress,
  'lzma': _lzma,
  'bzip2': bz2.compress,
}
_PACKINGS = pytest.mark.parametrize('pack', _PACKS.values(), ids=_PACKS.keys())
_COMPRESSED = pytest.mark.parametrize(
  'pack', list(_PACKS.values())[1:], ids=list(_PACKS)[1:]
)
# Packed, it has 128 KiB: more than is read at once of any kind of file.
_RANDOM = random.Random(1).randbytes(1 << 17)


@functools.cache
def _packed_random(pack):
  return pack(_RANDOM)


def _read(path, data):
  """Returns (content, Drop or None)."""
  path.write_bytes(data)
  chunks = []
  try:
    for chunk in read_chunks(str(path)):
      assert 0 < len(chunk) <= CHUNK_BYTES
      chunks.append(chunk)
  except Drop as drop:
    assert drop.damage
    assert 0 <= drop.byte <= len(data)
    return b''.join(chunks), drop
  return b''.join(chunks), None


@_PACKINGS
@pytest.mark.parametrize(
  'data',
  [b'', b'a', _RANDOM, bytes(3_000_000), b'ab' * (1 << 19) + b'c'],
  ids=['nothing', 'byte', 'random', 'zeros', 'two chunks and a byte'],
)
def test_content(tmp_path, pack, data):
  assert _read(tmp_path / 'any.name', pack(data)) == (data, None)


@_COMPRESSED
@pytest.mark.parametrize('padding', [0, 4, 5000, 300_000])
def test_streams_one_after_another_and_zeros(tmp_path, pack, padding):
  data = pack(b'a') + bytes(padding) + pack(_RANDOM) + pack(b'') + pack(b'c')
  expected = b'a' + _RANDOM + b'c'
  assert _read(tmp_path / 'a', data + bytes(padding)) == (expected, None)


def test_another_packing_behind_the_first_is_corrupt(tmp_path):
  content, drop = _read(tmp_path / 'a', gzip.compress(b'a') + b'BZh9')
  assert (content, drop.reason) == (b'a', 'corrupt_file')


@_COMPRESSED
@hypothesis.settings(max_examples=20)
@hypothesis.given(data=st.data())
def test_cut_file(tmp_path_factory, pack, data):
  packed = _packed_random(pack)
  size = data.draw(st.integers(6, len(packed) - 1))
  path = tmp_path_factory.getbasetemp() / 'cut'
  content, drop = _read(path, packed[:size])
  assert (drop.reason, drop.byte) == ('truncated_file', size)
  assert _RANDOM.startswith(content)
  # Random bytes cannot be packed: all but what a block of bzip2 holds back.
  if pack is not bz2.compress:
    assert len(content) > size - 2000


@_COMPRESSED
@hypothesis.settings(max_examples=20)
@hypothesis.given(data=st.data())
def test_one_wrong_byte(tmp_path_factory, pack, data):
  packed = bytearray(_packed_random(pack))
  # Behind what tells the packing: gzip 2, lzma 3, bzip2 3, xz 6.
  position = data.draw(st.integers(6, len(packed) - 1))
  packed[position] ^= 1 << data.draw(st.integers(0, 7))
  try:
    content, drop = _read(tmp_path_factory.getbasetemp() / 'wrong', packed)
  except UserError as error:
    # It may stand where .lzma says how much memory it needs.
    assert 'MiB of memory' in str(error)
    return
  if drop is None:
    # In a part that says nothing of the content, such as gzip's time; .lzma
    # has no checksum at all.
    assert pack is _lzma or content == _RANDOM
  elif pack is not _lzma:
    assert drop.reason in ('corrupt_file', 'truncated_file')


def test_place_of_a_fault_in_gzip_by_hand(tmp_path):
  # 10 bytes of header; a stored block of 3 bytes, not the last: kind 0, length
  # 3 and its complement, 5 bytes, and the content; then a block of kind 3,
  # which does not exist (bits 111). 10 + 5 + 3 = 18 bytes are good.
  header = bytes.fromhex('1f8b08 00 00000000 00 03')
  stored = bytes.fromhex('00 0300 fcff') + b'a\nb'
  content, drop = _read(tmp_path / 'a', header + stored + b'\x07' + b'x' * 50)
  assert (content, drop.reason, drop.byte) == (b'a\nb', 'corrupt_file', 18)


def test_place_of_a_fault_beyond_what_is_read_at_once(tmp_path):
  good = gzip.compress(_RANDOM) * 3
  bad = gzip.compress(b'abc')
  # The last 8 bytes are the checksum, all of which zlib looks at together with
  # the length: the first 4 of them are read, and do not fit.
  data = good + bad[:-8] + b'\0\0\0\0' + bad[-4:]
  content, drop = _read(tmp_path / 'a', data)
  assert (content, drop.reason) == (_RANDOM * 3 + b'abc', 'corrupt_file')
  assert len(good) + len(bad) - 8 <= drop.byte < len(data)


@pytest.mark.parametrize('pack', [lzma.compress, bz2.compress])
def test_place_of_a_fault_in_other_files(tmp_path, pack):
  good = pack(_RANDOM)
  packed = bytearray(good)
  packed[50_000] ^= 1
  content, drop = _read(tmp_path / 'a', packed)
  assert drop.reason == 'corrupt_file'
  # Whole pieces of 4 KiB, at or behind the byte: it may be noticed late.
  assert drop.byte % 4096 == 0
  assert 45_904 < drop.byte <= len(packed)


@pytest.mark.parametrize('pack', [gzip.compress, lzma.compress, bz2.compress])
def test_memory_is_bounded(tmp_path, pack):
  # 4 x 32 MiB from 130 KiB or less.
  member = pack(bytes(1 << 25))
  path = tmp_path / 'a'
  path.write_bytes(member * 4)
  del member
  num_bytes = 0
  tracemalloc.start()
  try:
    for chunk in read_chunks(str(path)):
      num_bytes += len(chunk)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert num_bytes == 4 << 25
  # Beside two chunks, the 8 MiB window of xz and the 4 MB of bzip2.
  assert peak < 24 << 20


@pytest.mark.parametrize(
  ('magic', 'kind'),
  [
    (b'\x28\xb5\x2f\xfd', 'zstd'),
    (b'\x04\x22\x4d\x18', 'lz4'),
    (b'PK\x03\x04', 'zip'),
    (b'Rar!\x1a\x07', 'rar'),
  ],
)
def test_refused(tmp_path, magic, kind):
  path = tmp_path / 'a.json'
  path.write_bytes(magic + b'...')
  expected = (
    '`--input` must name plain, gzip, xz or bzip2 files, but '
    f"'{path}' is {kind}. Unpack it, or pack it with gzip."
  )
  with pytest.raises(UserError, match=re.escape(expected)):
    list(read_chunks(str(path)))


def test_7z_is_packed_again(tmp_path):
  path = tmp_path / 'beer.stackexchange.com.7z'
  path.write_bytes(b'7z\xbc\xaf\x27\x1c...')
  expected = (
    f"'{path}' is 7z. Unpack it: 7z e -so beer.stackexchange.com.7z Posts.xml "
    '| gzip > beer.stackexchange.com.xml.gz.'
  )
  with pytest.raises(UserError, match=re.escape(expected)):
    list(read_chunks(str(path)))


def test_too_much_memory_to_unpack(tmp_path):
  # The 4 bytes behind the first say how large the window is: here 2 GiB.
  packed = bytearray(_lzma(b'a'))
  packed[1:5] = (1 << 31).to_bytes(4, 'little')
  with pytest.raises(UserError, match='files that 1024 MiB of memory suffice'):
    _read(tmp_path / 'a', packed)
