"""Whole, joined, cut, corrupt and enormous files of every packing."""

import bz2
import functools
import gzip
import lzma
import random
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest
import zstandard

from pipelines.open_raw import open_raw, start_of
from pipelines.source import Drop
from tff_fedfish.errors import UserError


def _lzma(data):
  return lzma.compress(data, format=lzma.FORMAT_ALONE)


def _zstd(data):
  return zstandard.ZstdCompressor(write_checksum=True).compress(data)


_PACKS = {
  'plain': bytes,
  'gzip': gzip.compress,
  'xz': lzma.compress,
  'lzma': _lzma,
  'bzip2': bz2.compress,
  'zstd': _zstd,
}
_COMPRESSED = pytest.mark.parametrize(
  'pack', list(_PACKS.values())[1:], ids=list(_PACKS)[1:]
)
# Packed, it has 128 KiB: more than is unpacked at once of any kind of file.
_RANDOM = random.Random(1).randbytes(1 << 17)


@functools.cache
def _packed_random(pack):
  return pack(_RANDOM)


def _read(path, data):
  """Returns (content, Drop or None)."""
  path.write_bytes(data)
  content = bytearray()
  with open_raw(str(path)) as stream:
    try:
      while byte := stream.read1():
        content += byte
    except Drop as drop:
      assert drop.damage
      return bytes(content), drop
  return bytes(content), None


@pytest.mark.parametrize('pack', _PACKS.values(), ids=_PACKS.keys())
@pytest.mark.parametrize(
  'data',
  [b'', _RANDOM, b'ab' * (1 << 19) + b'c'],
  ids=['nothing', 'random', 'two pieces and a byte'],
)
def test_content(tmp_path, pack, data):
  assert _read(tmp_path / 'any.name', pack(data)) == (data, None)


@_COMPRESSED
@pytest.mark.parametrize('padding', [0, 4, 300_000])
def test_streams_one_after_another_and_zeros(tmp_path, pack, padding):
  data = pack(b'a') + bytes(padding) + pack(_RANDOM) + pack(b'') + pack(b'c')
  path = tmp_path / 'a'
  expected = b'a' + _RANDOM + b'c'
  assert _read(path, data + bytes(padding)) == (expected, None)
  # The start is whole, however short the first stream is.
  with open_raw(str(path)) as stream:
    assert start_of(stream) == expected[: 1 << 17]


@pytest.mark.parametrize('rest', [b'BZh9', b'garbage'])
def test_something_else_behind_a_stream_is_corrupt(tmp_path, rest):
  content, drop = _read(tmp_path / 'a', gzip.compress(b'a') + rest)
  assert (content, drop.reason) == (b'a', 'corrupt_file')


@_COMPRESSED
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data())
def test_cut_file(tmp_path_factory, pack, data):
  packed = _packed_random(pack)
  size = data.draw(st.integers(6, len(packed) - 1))
  path = tmp_path_factory.getbasetemp() / 'cut'
  content, drop = _read(path, packed[:size])
  assert drop.reason == 'truncated_file'
  assert _RANDOM.startswith(content)
  # Random bytes cannot be packed: all but what a block holds back.
  if pack not in (bz2.compress, _zstd):
    assert len(content) > size - 2000


@_COMPRESSED
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data())
def test_one_wrong_byte(tmp_path_factory, pack, data):
  packed = bytearray(_packed_random(pack))
  # Behind what tells the packing - gzip 2, lzma 3, bzip2 3, xz 6 - and, of
  # zstd, the size of its window: 9.
  position = data.draw(st.integers(9, len(packed) - 1))
  packed[position] ^= 1 << data.draw(st.integers(0, 7))
  content, drop = _read(tmp_path_factory.getbasetemp() / 'wrong', packed)
  if drop is None:
    # In a part that says nothing of the content, such as gzip's time; .lzma
    # has no checksum at all.
    assert pack is _lzma or content == _RANDOM
  elif pack is not _lzma:
    assert drop.reason in ('corrupt_file', 'truncated_file')


@pytest.mark.parametrize(
  'pack', [gzip.compress, lzma.compress, bz2.compress, _zstd]
)
def test_what_precedes_a_fault_is_kept(tmp_path, pack):
  # The second stream is broken in its middle.
  packed = bytearray(pack(_RANDOM))
  packed[50_000] ^= 1
  content, drop = _read(tmp_path / 'a', pack(_RANDOM) + packed)
  assert drop.reason == 'corrupt_file'
  assert content.startswith(_RANDOM)


@pytest.mark.parametrize(
  'pack', [gzip.compress, lzma.compress, bz2.compress, _zstd]
)
def test_memory_is_bounded(tmp_path, pack):
  # 6 x 8 MiB from some KiB.
  member = pack(bytes(1 << 23))
  path = tmp_path / 'a'
  path.write_bytes(member * 6)
  num_bytes = 0
  tracemalloc.start()
  try:
    with open_raw(str(path)) as stream:
      while data := stream.read(1 << 20):
        num_bytes += len(data)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert num_bytes == 6 << 23
  # Beside some pieces, the 8 MiB window of xz and the 4 MB of bzip2.
  assert peak < 24 << 20


def test_a_window_of_gigabytes_is_not_allocated(tmp_path):
  # The 4 bytes behind the first say how large the window is: here 2 GiB.
  packed = bytearray(_lzma(b'a'))
  packed[1:5] = (1 << 31).to_bytes(4, 'little')
  with pytest.raises(UserError) as raised:
    _read(tmp_path / 'a', packed)
  assert str(raised.value) == (
    '`--input` must name xz files that unpack in at most 1024 MiB of memory, '
    f'but {str(tmp_path / "a")!r} takes more. Pack it with gzip.'
  )


def _zstd_frame(window_log, data):
  """Returns a frame of one block, with a window of 2 ** window_log bytes."""
  header = b'\x28\xb5\x2f\xfd\0' + bytes([(window_log - 10) << 3])
  return header + (len(data) << 3 | 1).to_bytes(3, 'little') + data


def test_large_zstd_windows_are_asked_for(tmp_path):
  path = tmp_path / 'RC_2020.zst'
  assert _read(path, _zstd_frame(27, b'a')) == (b'a', None)
  # The frame that needs more is not the first.
  path.write_bytes(_zstd_frame(27, b'a') + _zstd_frame(31, b'b'))
  for log in (27, 30):
    with pytest.raises(UserError) as raised, open_raw(str(path), log) as stream:
      stream.read()
    assert str(raised.value) == (
      f'`--max_window_log` must be at least 31 for {str(path)!r}, but is '
      f'{log}: the zstd window takes 2,048 MiB of memory in each process that '
      'reads. Add `--max_window_log 31`.'
    )
  with open_raw(str(path), 31) as stream:
    assert stream.read() == b'ab'


def test_skippable_frames_of_zstd(tmp_path):
  skipped = b'\x5d\x2a\x4d\x18' + (3 << 20).to_bytes(4, 'little')
  skipped += bytes(3 << 20)
  packed = skipped + _zstd(b'a') + skipped + _zstd(b'b')
  assert _read(tmp_path / 'a', packed + skipped) == (b'ab', None)
  content, drop = _read(tmp_path / 'a', packed + skipped[:-1])
  assert (content, drop.reason) == (b'ab', 'truncated_file')
