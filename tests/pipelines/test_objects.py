"""Objects from JSON lines and documents, and what cannot be one."""

import gzip
import json
import lzma
import tracemalloc

import pytest

from pipelines.objects import read_objects
from pipelines.source import Drop
from tff_fedfish.errors import UserError

_MAX_BYTES = 1000
# 3 bytes of a line for one of text, and a mebibyte.
_LONG = b'x' * (1 << 17)
_MAX_LINE_BYTES = 3 * _MAX_BYTES + (1 << 20)


def _read(path, data):
  path.write_bytes(data)
  return [
    (num, value.reason if isinstance(value, Drop) else value)
    for num, value in read_objects(str(path), _MAX_BYTES)
  ]


def test_lines(tmp_path):
  # Files that begin with a byte order mark, one behind the other, have another
  # in the middle.
  data = (
    b'\xef\xbb\xbf{"a": 1}\r\n\n[]\n {"b": [null]} \n'
    b'\xef\xbb\xbf{"c": "\xc3\xa9"}\n\xef\xbb\xbf\n'
    # Only \n ends a line.
    b'{"d": "\xe2\x80\xa8"}'
  )
  expected = [
    (1, {'a': 1}),
    (2, 'empty_line'),
    (3, 'not_an_object'),
    (4, {'b': [None]}),
    (5, {'c': 'é'}),
    (6, 'empty_line'),
    (7, {'d': '\u2028'}),
  ]
  assert _read(tmp_path / 'a', data) == expected
  assert _read(tmp_path / 'b', gzip.compress(data)) == expected
  assert _read(tmp_path / 'c', b'') == []
  assert _read(tmp_path / 'd', gzip.compress(b'')) == []


@pytest.mark.parametrize('encoding', ['utf-16-le', 'utf-16-be'])
def test_utf16_is_named(tmp_path, encoding):
  path = tmp_path / 'a.jsonl'
  with pytest.raises(UserError) as raised:
    _read(path, '\ufeff{"text": "a"}\n'.encode(encoding))
  assert str(raised.value) == (
    f'`--input` must name files in UTF-8, but {str(path)!r} is UTF-16. Save it '
    'as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`.'
  )


@pytest.mark.parametrize(
  ('line', 'reason'),
  [
    (b'', 'empty_line'),
    (b' \t\r', 'empty_line'),
    (b'{"text": "a"}\xff', 'invalid_utf8'),
    ('{"text": "a"}'.encode('utf-16'), 'invalid_utf8'),
    (b'{"text": "a"', 'malformed_json'),
    (b'{"text": "a"} {}', 'malformed_json'),
    (b"{'text': 'a'}", 'malformed_json'),
    (b'{"a":' * 100_000, 'malformed_json'),
    (b'{"n": ' + b'1' * 5000 + b'}', 'malformed_json'),
    (b'[1]', 'not_an_object'),
    (b'NaN', 'not_an_object'),
    (b'"{}"', 'not_an_object'),
  ],
  # Not the values: some are long.
  ids=range(12),
)
def test_line_that_is_no_object(tmp_path, line, reason):
  # It costs no other line.
  data = b'{"a": 1}\n' + line + b'\n{"b": 2}'
  expected = [(1, {'a': 1}), (2, reason), (3, {'b': 2})]
  assert _read(tmp_path / 'a', data) == expected
  _, (_, drop), _ = read_objects(str(tmp_path / 'a'), _MAX_BYTES)
  assert (drop.damage, drop.excerpt) == (False, (line + b'\n')[:200])


@pytest.mark.parametrize('pack', [bytes, gzip.compress, lzma.compress])
def test_long_line(tmp_path, pack):
  # With its end, and without escapes, it has the bytes of a text and 1 MiB.
  longest = b'{"a": "' + b'x' * (_MAX_BYTES + (1 << 20) - 10) + b'"}'
  data = b'\n'.join([longest, b' ' + longest, b'{}', b'y' * 3_000_000])
  (_, value), *others = _read(tmp_path / 'a', pack(data))
  assert len(value['a']) == len(longest) - 9
  assert others == [
    (2, 'document_too_large'),
    (3, {}),
    (4, 'document_too_large'),
  ]
  *_, (_, drop) = read_objects(str(tmp_path / 'a'), _MAX_BYTES)
  assert drop.excerpt == b'y' * 200


@pytest.mark.parametrize('before', ['', '\ufeff\r\n'])
@pytest.mark.parametrize('indent', [0, 2, '\t'])
def test_object_over_several_lines(tmp_path, before, indent):
  value = {'a': 'b\nc', 'd': [{'e': None}, []]}
  text = before + json.dumps(value, indent=indent) + '\r\n \n'
  assert _read(tmp_path / 'a', text.encode()) == [(1, value)]


@pytest.mark.parametrize(
  ('data', 'reason'),
  [
    (b'{\n "text": "a",\n "b"', 'malformed_json'),
    # Whether others follow is not seen.
    (b'{\n "a": "%s"\n}\n{\n "a": 2\n}' % _LONG, 'malformed_json'),
    (b'{\n "text": "\xff"\n}', 'invalid_utf8'),
    # Half of a character.
    (b'{\n "text": "\xed\xa0\x80"}', 'invalid_utf8'),
    (b'{\n "text": ' + b'[' * 100_000, 'malformed_json'),
    (b'{\n "text": "' + b'x' * _MAX_LINE_BYTES + b'"}', 'document_too_large'),
    # Its compressed data are cut: what unpacks ends before the bracket.
    (gzip.compress(b'{\n "text": "a"\n}')[:-12], 'truncated_file'),
  ],
  ids=range(7),
)
def test_bad_object_over_several_lines_is_one_drop(tmp_path, data, reason):
  path = tmp_path / 'a'
  assert _read(path, data) == [(1, reason)]
  ((_, drop),) = read_objects(str(path), _MAX_BYTES)
  assert drop.damage


@pytest.mark.parametrize('escape', ['\u00e9', '\u4e2d', '\\u', '"', '\n'])
def test_escapes_do_not_make_a_text_long(tmp_path, escape):
  text = escape * (2_500_000 // len(escape.encode()))
  (tmp_path / 'a').write_text(json.dumps({'text': text}))
  ((_, value),) = read_objects(str(tmp_path / 'a'), 2_500_000)
  assert value == {'text': text}


@pytest.mark.parametrize(
  'data',
  [
    *(json.dumps([{'a': 1}, {'b': 2}], indent=i).encode() for i in (None, 2)),
    b'[\n{"a": 1}\n,{"a": 2}\n]\n',
    b'[\n{"a": 1}\n]\n',
    b'[\n{"a": "%s"},\n{"a": 2}\n]' % (b'x' * 100_000),
    b'[{"a": "%s"}]' % (b'x' * 100_000),
    b'[{"a": 1}]\n\n',
    b'[{"a": 1},\n{"a": 2}]\n',
  ],
  ids=range(8),
)
def test_array_is_refused(tmp_path, data):
  path = tmp_path / 'a'
  for pack in (bytes, gzip.compress):
    with pytest.raises(UserError) as raised:
      _read(path, pack(data))
    assert str(raised.value) == (
      f'`--input` must hold a JSON object to a line, but {str(path)!r} is an '
      "array. Write its objects to lines, for example with `jq -c '.[]'`."
    )


@pytest.mark.parametrize(
  ('first', 'reason'),
  [
    (b'{', 'malformed_json'),
    (b'[', 'malformed_json'),
    (b'[{"a":', 'malformed_json'),
    (b'[]', 'not_an_object'),
    (b'[{"text": 1}]', 'not_an_object'),
  ],
)
def test_bad_first_line_costs_no_other(tmp_path, first, reason):
  # An array whose second line is long begins like `[`.
  text = 'x' * (0 if first == b'[' else 100_000)
  data = first + b'\n{"a": "%s"}\n' % text.encode() + b'{"a": 1}\n' * 50
  expected = [reason, {'a': text}] + [{'a': 1}] * 50
  assert [value for _, value in _read(tmp_path / 'a', data)] == expected
  found = _read(tmp_path / 'a', gzip.compress(data)[:-1])
  assert [value for _, value in found] == [*expected, 'truncated_file']


def _peak_bytes(path, max_document_bytes):
  """Returns (reasons, what reading takes in memory)."""
  tracemalloc.start()
  try:
    reasons = [
      value.reason for _, value in read_objects(str(path), max_document_bytes)
    ]
    return reasons, tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize(
  ('start', 'piece', 'num_bytes'),
  [
    # Of a line up to three times the 4 MiB of a text are held.
    (b'', b'\0', 60_000_000),
    (b'{"text": "', b'x', 60_000_000),
    # Parsed, it would take 300 MB; with escapes, whose bytes do not count, too.
    (b'{"x": [', b'[],', 11_900_000),
    (b'{\n "x": [', b'[],', 11_900_000),
    (b'{"x": [', b'[],"\\\\",', 11_900_000),
    (b'{"x": [', b'[],"\\u0041",', 11_900_000),
    # No escape at all: what is wrong counts in full.
    (b'{"x": [', b'[],[],\\u', 11_900_000),
  ],
  ids=range(7),
)
def test_bombs(tmp_path, start, piece, num_bytes):
  path = tmp_path / 'a.json.gz'
  with gzip.open(path, 'wb', compresslevel=1) as file:
    file.write(start)
    chunk = piece * (1_000_000 // len(piece))
    for _ in range(num_bytes // len(chunk)):
      file.write(chunk)
  reasons, peak = _peak_bytes(path, 4 << 20)
  assert reasons == ['document_too_large']
  assert peak < 8 * (4 << 20)


@pytest.mark.parametrize(
  ('data', 'reason'),
  [
    (b' ' * 2_000_000, 'empty_line'),
    (b'\xef\xbb\xbf' + b'\t ' * 1_000_000 + b'x', 'malformed_json'),
  ],
  ids=range(2),
)
def test_memory_is_a_few_times_the_size(tmp_path, data, reason):
  path = tmp_path / 'a'
  path.write_bytes(data)
  reasons, peak = _peak_bytes(path, 1 << 20)
  assert reasons == [reason]
  assert peak < 4 * len(data) + (4 << 20)
