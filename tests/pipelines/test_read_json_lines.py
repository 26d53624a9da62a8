"""Lines of whole, long, cut and corrupt files."""

import gzip
import lzma
import random
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest

from pipelines.raw_bytes import read_chunks
from pipelines.read_json import split_lines
from pipelines.source import Drop


def _read(path, data, max_line_bytes=1 << 22):
  path.write_bytes(data)
  return [
    (line_num, line.reason if isinstance(line, Drop) else line)
    for line_num, line in split_lines(read_chunks(str(path)), max_line_bytes)
  ]


@pytest.mark.parametrize('pack', [bytes, gzip.compress])
@pytest.mark.parametrize(
  ('data', 'lines'),
  [
    (b'', []),
    (b'a', [b'a']),
    (b'a\n', [b'a']),
    (b'\n', [b'']),
    (b'a\r\n\nb', [b'a\r', b'', b'b']),
    # Only \n ends a line; U+2028 may stand inside JSON.
    ('a\u2028b\n'.encode(), ['a\u2028b'.encode()]),
    (b'\xef\xbb\xbfa\n\xef\xbb\xbfb', [b'a', b'\xef\xbb\xbfb']),
  ],
)
def test_lines(tmp_path, pack, data, lines):
  expected = list(enumerate(lines, start=1))
  assert _read(tmp_path / 'any.name', pack(data)) == expected


def test_lines_longer_than_what_is_read_at_once(tmp_path):
  lines = [b'a' * 3_000_000, b'', b'b' * 1_048_575, b'c']
  expected = list(enumerate(lines, start=1))
  data = b'\n'.join(lines)
  assert _read(tmp_path / 'a', data) == expected
  assert _read(tmp_path / 'b', gzip.compress(data)) == expected


def test_concatenated_and_padded_gzip(tmp_path):
  data = gzip.compress(b'a\nb') + gzip.compress(b'c\n') + bytes(1000)
  assert _read(tmp_path / 'a', data) == [(1, b'a'), (2, b'bc')]


def _lines():
  # Random digits, so that the compressed file has many bytes to cut at.
  numbers = random.Random(3)
  return [b'%d' % numbers.getrandbits(400) for _ in range(500)]


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(st.data())
def test_cut_gzip_keeps_what_was_read(tmp_path_factory, data):
  lines = _lines()
  packed = gzip.compress(b'\n'.join(lines))
  size = data.draw(st.integers(2, len(packed) - 1))
  path = tmp_path_factory.mktemp('cut') / 'a'
  *kept, (line_num, reason) = _read(path, packed[:size])
  assert reason == 'truncated_file'
  assert [line for _, line in kept] == lines[: len(kept)]
  assert line_num == len(kept) + 1
  # Bytes and lines do not advance quite alike: measured, 13 lines at most.
  assert len(kept) >= size / len(packed) * len(lines) - 20


def test_corrupt_gzip(tmp_path):
  lines = _lines()
  packed = bytearray(gzip.compress(b'\n'.join(lines)))
  # Bytes -8 to -5 are the checksum: all lines were read by then.
  packed[-5] ^= 1
  *kept, last = _read(tmp_path / 'a', packed)
  assert [line for _, line in kept] == lines[:-1]
  assert last == (500, 'corrupt_file')


def test_garbage_behind_gzip(tmp_path):
  data = gzip.compress(b'a\nb\n') + b'garbage'
  found = _read(tmp_path / 'a', data)
  assert found == [(1, b'a'), (2, b'b'), (3, 'corrupt_file')]


def test_damage_is_marked(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(gzip.compress(b'a\n')[:-1])
  (_, line), (_, drop) = split_lines(read_chunks(str(path)), 100)
  assert line == b'a'
  assert drop.damage
  assert drop.byte == len(path.read_bytes())


@pytest.mark.parametrize('pack', [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize(
  ('data', 'lines'),
  [
    (b'abcd', [b'abcd']),
    (b'abcde', [None]),
    (b'abcde\n', [None]),
    (b'abcde\nab\n\nabcdef\nabc', [None, b'ab', b'', None, b'abc']),
    (b'x' * 3_000_000 + b'\na\n' + b'y' * 1_100_000, [None, b'a', None]),
  ],
  ids=range(5),
)
def test_long_lines(tmp_path, pack, data, lines):
  expected = ['document_too_large' if line is None else line for line in lines]
  found = _read(tmp_path / 'a', pack(data), max_line_bytes=4)
  assert found == list(enumerate(expected, start=1))


def test_excerpt_of_a_long_line(tmp_path):
  path = tmp_path / 'a'
  path.write_bytes(b'ab' * 2_000_000 + b'\n' + b'cd' * 500)
  lines = split_lines(read_chunks(str(path)), 9)
  found = [(drop.reason, drop.excerpt) for _, drop in lines]
  assert found == [
    ('document_too_large', b'ab' * 100),
    ('document_too_large', b'cd' * 100),
  ]


def test_memory_is_bounded(tmp_path):
  path = tmp_path / 'a'
  # 128 MiB without an end of line.
  path.write_bytes(gzip.compress(bytes(1 << 25)) * 4)
  tracemalloc.start()
  try:
    ((line_num, drop),) = split_lines(read_chunks(str(path)), 1 << 20)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert (line_num, drop.reason) == (1, 'document_too_large')
  assert peak < 8 << 20


@hypothesis.given(
  pieces=st.lists(st.lists(st.sampled_from([b'\n', b'a', b'bcd']))),
  max_line_bytes=st.integers(0, 8),
)
def test_pieces_make_no_difference(pieces, max_line_bytes):
  chunks = [chunk for piece in pieces if (chunk := b''.join(piece))]
  lines = b''.join(chunks).split(b'\n')
  if not lines[-1]:
    lines.pop()
  found = list(split_lines(chunks, max_line_bytes))
  assert [line_num for line_num, _ in found] == [*range(1, len(lines) + 1)]
  for line, (_, piece) in zip(lines, found, strict=True):
    if len(line) > max_line_bytes:
      assert (piece.reason, piece.excerpt) == ('document_too_large', line)
    else:
      assert piece == line
