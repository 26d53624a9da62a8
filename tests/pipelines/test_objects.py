"""Objects from JSON lines and documents, and what cannot be one."""

import gzip
import json
import lzma
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest
from peak_memory import peak_above_idle

from pipelines.objects import parse_line, read_objects
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
  with pytest.raises(Drop, match=f'^{reason}$') as raised:
    parse_line(line)
  assert not raised.value.damage
  assert raised.value.excerpt == (b'' if reason == 'empty_line' else line[:200])
  # In a file, it costs no other line.
  data = b'{"a": 1}\n' + line + b'\n{"b": 2}'
  expected = [(1, {'a': 1}), (2, reason), (3, {'b': 2})]
  assert _read(tmp_path / 'a', data) == expected


@pytest.mark.parametrize('pack', [bytes, gzip.compress, lzma.compress])
def test_long_line(tmp_path, pack):
  longest = b'{"a": "' + b'x' * (_MAX_LINE_BYTES - 9) + b'"}'
  data = b'\n'.join([longest, b' ' + longest, b'{}', b'y' * 3_000_000])
  (_, value), *others = _read(tmp_path / 'a', pack(data))
  assert len(value['a']) == _MAX_LINE_BYTES - 9
  assert others == [
    (2, 'document_too_large'),
    (3, {}),
    (4, 'document_too_large'),
  ]
  *_, (_, drop) = read_objects(str(tmp_path / 'a'), _MAX_BYTES)
  assert drop.excerpt == b'y' * 200


_OBJECTS = [{'a': 'b\nc', 'd': [{'e': None}, []]}, {}, {'f': 1.5}]


@pytest.mark.parametrize('indent', [None, 0, 1, 2, '\t'])
@pytest.mark.parametrize('before', ['', '\n\n  ', '\ufeff', '\ufeff\r\n'])
@pytest.mark.parametrize('after', ['', '\n', '\r\n \n'])
def test_document(tmp_path, indent, before, after):
  def read(value):
    text = before + json.dumps(value, indent=indent) + after
    return _read(tmp_path / 'a', text.encode())

  assert read(_OBJECTS) == [*enumerate(_OBJECTS, start=1)]
  assert read([]) == []
  if indent is not None:
    assert read(_OBJECTS[0]) == [(1, _OBJECTS[0])]


def test_array_of_other_things(tmp_path):
  data = b'[{"a": 1},\n 2,\n {"b": 3}, null]'
  assert _read(tmp_path / 'a', data) == [
    (1, {'a': 1}),
    (2, 'not_an_object'),
    (3, {'b': 3}),
    (4, 'not_an_object'),
  ]


@pytest.mark.parametrize(
  ('data', 'reason'),
  [
    (b'{\n "text": "a",\n "b"', 'malformed_json'),
    (b'{\n "text": "\xff"\n}', 'invalid_utf8'),
    # Half of a character, which lines refuse too.
    (b'[{"text": "\xed\xa0\x80"}]', 'invalid_utf8'),
    (b'{\n "text": ' + b'[' * 100_000, 'malformed_json'),
    (b'[{"a": 1},\n{"b": 2},\n{"c": ', 'malformed_json'),
    # Its compressed data are cut: what unpacks ends before the bracket.
    (gzip.compress(b'{\n "text": "a"\n}')[:-12], 'truncated_file'),
  ],
  ids=range(6),
)
def test_bad_document_is_one_drop(tmp_path, data, reason):
  path = tmp_path / 'a'
  assert _read(path, data) == [(1, reason)]
  ((_, drop),) = read_objects(str(path), _MAX_BYTES)
  assert drop.damage


def test_too_large_an_array_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr('pipelines.objects._MAX_DOCUMENT_BYTES', 1 << 20)
  path = tmp_path / 'a'
  data = json.dumps([{'a': 'x' * 1000}] * 2000, indent=1).encode()
  with pytest.raises(UserError) as raised:
    _read(path, gzip.compress(data))
  assert str(raised.value) == (
    f'`--input` must hold JSON documents of at most 1 MiB, but {str(path)!r} '
    "is larger. Write an object to a line, for example with `jq -c '.[]'`."
  )


@pytest.mark.parametrize(
  ('first', 'reason'),
  [
    (b'{', 'malformed_json'),
    (b'[', 'malformed_json'),
    (b'[{', 'malformed_json'),
    (b'[]', 'not_an_object'),
    (b'[{"text": 1}]', 'not_an_object'),
    (b'{\n"', 'malformed_json'),
  ],
)
def test_bad_first_line_does_not_make_a_document(tmp_path, first, reason):
  num_bad = first.count(b'\n') + 1
  bad = [(i + 1, reason) for i in range(num_bad)]
  found = _read(tmp_path / 'a', first + b'\n{"a": 1}\n{"b": 2}')
  assert found == [*bad, (num_bad + 1, {'a': 1}), (num_bad + 2, {'b': 2})]


@pytest.mark.parametrize('first', [b'[]', b'[{}]', b'[{"a":'])
def test_bad_first_line_of_a_large_or_cut_off_file(
  tmp_path, monkeypatch, first
):
  data = first + b'\n' + b'{"a": 1}\n' * 5000
  packed = gzip.compress(data)[:-1]
  _, *others = _read(tmp_path / 'a', packed)
  assert [value for _, value in others] == [{'a': 1}] * 5000 + [
    'truncated_file'
  ]
  monkeypatch.setattr('pipelines.objects._MAX_DOCUMENT_BYTES', 1 << 10)
  (_, reason), *others = _read(tmp_path / 'a', data)
  assert reason in ('not_an_object', 'malformed_json')
  assert [value for _, value in others] == [{'a': 1}] * 5000


def test_lines_of_arrays_are_no_document(tmp_path):
  found = _read(tmp_path / 'a', b'[{"a": 1}]\n[{"b": 2}]\n')
  assert found == [(1, 'not_an_object'), (2, 'not_an_object')]


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
  # An empty line first: Hypothesis knows how to begin files of other formats.
  data = b'\n'.join([b'', *lines])
  found = _read(path, data)
  assert [num for num, _ in found] == [*range(1, len(found) + 1)]
  # A line that is an object by itself is found, unless all is one document.
  assert sum(value == {'a': 1} for _, value in found) in (
    lines.count(b'{"a": 1}'),
    1,
  )
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
    (b'[{"text": "', b'x', 600_000_000, 'larger', 1.2e9),
  ],
  ids=range(3),
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
    (b'[' + b'{},' * 200_000 + b'{}]', [{}] * 200_001),
  ],
  ids=range(3),
)
def test_memory_is_a_few_times_the_size(tmp_path, monkeypatch, data, expected):
  # Room for so much is asked for, which takes no memory before it is written.
  monkeypatch.setattr('pipelines.objects._MAX_DOCUMENT_BYTES', 1 << 20)
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
