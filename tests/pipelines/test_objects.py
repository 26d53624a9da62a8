"""Objects from JSON lines and documents, and what cannot be one."""

import gzip
import json
import lzma
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest
from peak_memory import peak_above_idle

from pipelines.objects import read_objects
from pipelines.source import Drop
from tff_fedfish.errors import UserError

_MAX_BYTES = 1000
# 3 bytes of a line for one of text, and a mebibyte.
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
@pytest.mark.parametrize('pack', [bytes, gzip.compress])
def test_utf16_is_named(tmp_path, encoding, pack):
  path = tmp_path / 'a.jsonl'
  with pytest.raises(UserError) as raised:
    _read(path, pack('\ufeff{"text": "a"}\n'.encode(encoding)))
  assert str(raised.value) == (
    f'`--input` must name files in UTF-8, but {str(path)!r} is UTF-16. Save it '
    'as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`.'
  )


@pytest.mark.parametrize(
  ('line', 'reason'),
  [
    (b'', 'empty_line'),
    (b' \t\r', 'empty_line'),
    (b'{"text": "\xff"}', 'invalid_utf8'),
    (b'{"text": "a"}\xff', 'invalid_utf8'),
    ('{"text": "a"}'.encode('utf-16'), 'invalid_utf8'),
    (b'{"text": "a"', 'malformed_json'),
    (b'{"text": "a"} {}', 'malformed_json'),
    (b"{'text': 'a'}", 'malformed_json'),
    (b'[' * 100_000, 'malformed_json'),
    (b'{"a":' * 100_000, 'malformed_json'),
    (b'{"n": ' + b'1' * 5000 + b'}', 'malformed_json'),
    (b'[1]', 'not_an_object'),
    (b'null', 'not_an_object'),
    (b'NaN', 'not_an_object'),
    (b'"{}"', 'not_an_object'),
  ],
  # Not the values: some are long.
  ids=range(15),
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


@pytest.mark.parametrize('before', ['', '\n\n  ', '\ufeff\r\n'])
@pytest.mark.parametrize('indent', [0, 2, '\t'])
def test_object_over_several_lines(tmp_path, before, indent):
  value = {'a': 'b\nc', 'd': [{'e': None}, []]}
  text = before + json.dumps(value, indent=indent) + '\r\n \n'
  assert _read(tmp_path / 'a', text.encode()) == [(1, value)]


@pytest.mark.parametrize(
  ('data', 'reason'),
  [
    (b'{\n "text": "a",\n "b"', 'malformed_json'),
    (b'{\n "text": 1\n}\n{\n "text": 2\n}', 'malformed_json'),
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


@pytest.mark.parametrize('indent', [None, 0, 2])
def test_array_is_refused(tmp_path, indent):
  path = tmp_path / 'a'
  data = json.dumps([{'a': 1}, {'b': 2}], indent=indent).encode()
  for pack in (bytes, gzip.compress):
    with pytest.raises(UserError) as raised:
      _read(path, pack(data))
    assert str(raised.value) == (
      f'`--input` must hold a JSON object to a line, but {str(path)!r} is an '
      "array. Write its objects to lines, for example with `jq -c '.[]'`."
    )


@pytest.mark.parametrize(
  'data',
  [
    b'[\n{"a": 1}\n,{"a": 2}\n]\n',
    b'[\n{"a": 1}\n]\n',
    b'[\n{"a": "%s"},\n{"a": 2}\n]' % (b'x' * 100_000),
    b'[{"a": "%s"}]' % (b'x' * 100_000),
    b'[{"a": 1}]\n\n',
    b'[{"a": 1},\n{"a": 2}]\n',
  ],
  ids=range(6),
)
def test_array_in_lines_is_refused(tmp_path, data):
  with pytest.raises(UserError, match='is an array'):
    _read(tmp_path / 'a', data)


@pytest.mark.parametrize(
  ('first', 'reason'),
  [
    (b'{', 'malformed_json'),
    (b'[', 'malformed_json'),
    (b'[{', 'malformed_json'),
    (b'[{"a":', 'malformed_json'),
    (b'[]', 'not_an_object'),
    (b'[{"text": 1}]', 'not_an_object'),
  ],
)
@pytest.mark.parametrize('text', ['', 'x' * 100_000], ids=['short', 'long'])
def test_bad_first_line_costs_no_other(tmp_path, first, reason, text):
  if text and first == b'[':
    pytest.skip('an array whose second line is long begins like this')
  data = first + b'\n{"a": "%s"}\n' % text.encode() + b'{"a": 1}\n' * 5000
  expected = [reason, {'a': text}] + [{'a': 1}] * 5000
  assert [value for _, value in _read(tmp_path / 'a', data)] == expected
  found = _read(tmp_path / 'a', gzip.compress(data)[:-1])
  assert [value for _, value in found] == [*expected, 'truncated_file']


@hypothesis.settings(max_examples=100)
@hypothesis.given(
  lines=st.lists(
    st.one_of(
      st.binary(max_size=12).filter(lambda line: b'\n' not in line),
      st.sampled_from([b'{', b'[', b'{"a": 1}', b'[{', b'}', b']', b'"a": 1']),
    ),
    max_size=8,
  ),
  cut=st.integers(0, 30),
)
def test_any_lines(tmp_path_factory, lines, cut):
  path = tmp_path_factory.getbasetemp() / 'lines'
  # Hypothesis knows how to begin files of other formats, and arrays.
  data = b'\n'.join([b'1', *lines])
  found = _read(path, data)
  assert [num for num, _ in found] == [*range(1, len(found) + 1)]
  # A line that is an object by itself is found.
  assert [v for _, v in found].count({'a': 1}) >= lines.count(b'{"a": 1}')
  packed = gzip.compress(data)
  if cut < len(packed) - 2:
    *_, (_, reason) = _read(path, packed[: len(packed) - cut - 1])
    assert reason == 'truncated_file'


@pytest.mark.parametrize(
  ('start', 'piece', 'num_bytes', 'reason', 'max_bytes'),
  [
    # A line of up to three times 64 MiB is held.
    (b'', b'\0', 600_000_000, 'document_too_large', 300e6),
    (b'{"text": "', b'x', 600_000_000, 'document_too_large', 300e6),
    (b'[{"text": "', b'x', 600_000_000, 'is an array', 300e6),
    # Parsed, it would take 4.8 GB; with escapes, whose bytes do not count, too.
    (b'{"x": [', b'[],', 190_000_000, 'document_too_large', 500e6),
    (b'{\n "x": [', b'[],', 190_000_000, 'document_too_large', 500e6),
    (b'{"x": [', b'[],"\\\\",', 190_000_000, 'document_too_large', 500e6),
    # No escape at all: what is wrong counts in full.
    (b'{"x": [', b'[],[],\\u', 190_000_000, 'document_too_large', 600e6),
  ],
  ids=range(7),
)
def test_bombs(tmp_path, start, piece, num_bytes, reason, max_bytes):
  path = tmp_path / 'a.json.gz'
  with gzip.open(path, 'wb', compresslevel=1) as file:
    file.write(start)
    chunk = piece * (1_000_000 // len(piece))
    for _ in range(num_bytes // len(chunk)):
      file.write(chunk)
  taken = peak_above_idle(
    'import apache_beam.io.filesystems\n'
    'from pipelines.objects import read_objects\n'
    'from tff_fedfish.errors import UserError',
    'try:\n'
    '  ((num, drop),) = read_objects(sys.argv[1], 64 << 20)\n'
    '  assert (num, drop.reason) == (1, sys.argv[2])\n'
    '  assert len(drop.excerpt) == 200\n'
    'except UserError as error:\n'
    '  assert sys.argv[2] in str(error)',
    *(path, reason),
  )
  assert taken < max_bytes


@pytest.mark.parametrize(
  ('data', 'expected'),
  [
    (b' ' * 2_000_000, ['empty_line']),
    (b'\xef\xbb\xbf' + b'\t ' * 1_000_000 + b'x', ['malformed_json']),
  ],
  ids=range(2),
)
def test_memory_is_a_few_times_the_size(tmp_path, data, expected):
  path = tmp_path / 'a'
  path.write_bytes(data)
  num_bytes = len(data)
  del data
  num = 0
  tracemalloc.start()
  try:
    for num, value in read_objects(str(path), 1 << 20):
      value = value.reason if isinstance(value, Drop) else value
      assert value == expected[num - 1]
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert num == len(expected)
  assert peak < 4 * num_bytes + (4 << 20)
