"""Objects from JSON lines and documents, and what cannot be one."""

import gzip
import json
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import pytest
from peak_memory import peak_above_idle

from pipelines.read_json import parse_line, read_document, split_lines
from pipelines.read_objects import read_objects
from pipelines.source import Drop

_MAX_BYTES = 1000
# 3 bytes of a line for one of text, and a mebibyte.
_MAX_LINE_BYTES = 3 * _MAX_BYTES + (1 << 20)
# Without its escapes.
_MAX_CONTENT_BYTES = _MAX_BYTES + (1 << 20)


def _read(path, data):
  path.write_bytes(data)
  return [
    (num, value.reason if isinstance(value, Drop) else value)
    for num, value in read_objects(str(path), _MAX_BYTES)
  ]


def test_lines(tmp_path):
  data = b'\xef\xbb\xbf{"a": 1}\r\n\n[]\n {"b": [null]} \n{"c": "\xc3\xa9"}'
  expected = [
    (1, {'a': 1}),
    (2, 'empty_line'),
    (3, 'not_an_object'),
    (4, {'b': [None]}),
    (5, {'c': 'é'}),
  ]
  assert _read(tmp_path / 'a', data) == expected
  assert _read(tmp_path / 'b', gzip.compress(data)) == expected


def test_nothing(tmp_path):
  assert _read(tmp_path / 'a', b'') == []
  assert _read(tmp_path / 'a', gzip.compress(b'')) == []


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


def test_numbers_that_are_none():
  line = b'{"a": NaN, "b": -Infinity, "c": 1e999}'
  assert str(parse_line(line)) == "{'a': nan, 'b': -inf, 'c': inf}"


def test_long_line(tmp_path):
  longest = b'{"a": "' + b'x' * (_MAX_CONTENT_BYTES - 9) + b'"}'
  assert len(longest) == _MAX_CONTENT_BYTES
  data = longest + b'\n ' + longest + b'\n{}'
  (_, value), *others = _read(tmp_path / 'a', data)
  assert len(value['a']) == _MAX_CONTENT_BYTES - 9
  assert others == [(2, 'document_too_large'), (3, {})]


@pytest.mark.parametrize('newline', ['\n', ''])
def test_escapes_do_not_count_for_a_long_line(tmp_path, newline):
  # Six bytes of JSON for two of text, as json.dumps writes them.
  text = 'é' * ((_MAX_LINE_BYTES - 100) // 6)
  assert len(json.dumps(text)) > _MAX_CONTENT_BYTES
  data = json.dumps({'a': text}) + newline
  # As several pieces and as one.
  for max_bytes in (1 << 20, 1 << 30):
    assert _read(tmp_path / 'a', data.encode()) == [(1, {'a': text})]
    lines = split_lines(
      [
        data.encode()[i : i + max_bytes] for i in range(0, len(data), max_bytes)
      ],
      _MAX_LINE_BYTES,
      _MAX_CONTENT_BYTES,
    )
    assert list(lines) == [(1, data.strip().encode())]
  # As long, but without escapes.
  data = json.dumps({'a': 'e' * len(data)}) + newline
  assert _read(tmp_path / 'a', data.encode()) == [(1, 'document_too_large')]


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


def test_document_of_other_things(tmp_path):
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
    (b'{\n "text": "a"\n', 'malformed_json'),
    (b'{\n "text": "\xff"\n}', 'invalid_utf8'),
    (b'{\n "text": "' + b'a' * _MAX_LINE_BYTES + b'"\n}', 'document_too_large'),
    # Its compressed data are cut: what unpacks ends before the bracket.
    (gzip.compress(b'{\n "text": "a"\n}')[:-12], 'truncated_file'),
  ],
  ids=range(5),
)
def test_bad_document_is_one_drop(tmp_path, data, reason):
  assert _read(tmp_path / 'a', data) == [(1, reason)]


def test_whole_document_before_damage(tmp_path):
  # Only the checksum and the length behind the data are cut.
  data = gzip.compress(b'{\n "text": "a"\n}')[:-3]
  assert _read(tmp_path / 'a', data) == [
    (1, {'text': 'a'}),
    (2, 'truncated_file'),
  ]


@pytest.mark.parametrize(
  ('rest', 'reason'),
  [
    (b'', 'malformed_json'),
    (b',', 'malformed_json'),
    (b', ]', 'malformed_json'),
    (b' {"c": 3}]', 'malformed_json'),
    (b'] {"c": 3}', 'malformed_json'),
    (b', {"c": }, {"d": 4}]', 'malformed_json'),
    (b', {"c', 'malformed_json'),
    (b', {"c": ' + b'[' * 100_000, 'malformed_json'),
    (b', {"c": ' + b'1' * 5000 + b'}]', 'malformed_json'),
    (b', {"c": "\xff"}, {"d": 4}]', 'invalid_utf8'),
    (b', {"c": "\xc3', 'invalid_utf8'),
    (b'\xff, {"d": 4}]', 'invalid_utf8'),
    (b']\xff', 'invalid_utf8'),
    (b', {"c": "' + b'x' * _MAX_LINE_BYTES + b'"}]', 'document_too_large'),
    (b', {"c": "' + b'x' * _MAX_LINE_BYTES, 'document_too_large'),
  ],
  ids=range(15),
)
@pytest.mark.parametrize('space', [b'', b'\n  ', b' ' * 5000], ids=range(3))
def test_what_precedes_a_fault_in_an_array(tmp_path, rest, reason, space):
  path = tmp_path / 'a'
  data = b'[{"a": 1},' + space + b'{"b": "\xc3\xa9"}' + space + rest
  expected = [(1, {'a': 1}), (2, {'b': 'é'}), (3, reason)]
  assert _read(path, data) == expected
  *_, (_, drop) = read_objects(str(path), _MAX_BYTES)
  assert drop.damage
  # One element is no less than two.
  data = b'[{"b": "\xc3\xa9"}' + space + rest
  assert _read(path, data) == [(1, {'b': 'é'}), (2, reason)]


def test_beginning_of_a_fault(tmp_path):
  (tmp_path / 'a').write_bytes(b'[{"a": 1}, {"b": "\xff"}]')
  *_, (_, drop) = read_objects(str(tmp_path / 'a'), _MAX_BYTES)
  assert drop.excerpt == b'{"b": "\xff"}]'


def test_damaged_array(tmp_path):
  objects = [{'number': i, 'text': f'{i * i}'} for i in range(50_000)]
  data = gzip.compress(json.dumps(objects, indent=1).encode())
  found = _read(tmp_path / 'a', data[: len(data) // 2])
  num_whole = len(found) - 1
  assert 20_000 < num_whole < 30_000
  assert [value for _, value in found[:-1]] == objects[:num_whole]
  assert found[-1] == (num_whole + 1, 'truncated_file')


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
  values=st.lists(
    st.recursive(
      st.none() | st.booleans() | st.integers() | st.text(max_size=3),
      lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=2),
      max_leaves=5,
    ),
    max_size=4,
  ),
  indent=st.sampled_from([None, 1]),
  ascii_only=st.booleans(),
  data=st.data(),
)
def test_pieces_of_an_array(values, indent, ascii_only, data):
  text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
  packed = text.encode()
  num_bytes = data.draw(st.integers(1, 8))

  def read(packed):
    chunks = [
      packed[i : i + num_bytes] for i in range(0, len(packed), num_bytes)
    ]
    return [
      value.reason if isinstance(value, Drop) else value
      for _, value in read_document(lambda: iter(chunks), 1000)
    ]

  expected = [
    value if isinstance(value, dict) else 'not_an_object' for value in values
  ]
  assert read(packed) == expected
  # Cut anywhere, it keeps what is complete; half a number may count as one.
  cut = packed[: data.draw(st.integers(1, len(packed) - 1))]
  *found, last = read(cut)
  assert last in ('malformed_json', 'invalid_utf8')
  assert found == expected[: len(found)]


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
  # More lines than are looked at together.
  value = {'a': 'x' * 2000}
  line = b'\n' + json.dumps(value).encode()
  found = _read(tmp_path / 'a', first + line * 1000)
  assert found[:num_bad] == bad
  assert len(found) == num_bad + 1000
  assert found[-1] == (num_bad + 1000, value)


def test_bad_first_line_and_damage(tmp_path):
  data = gzip.compress(b'[]\n{"a": 1}\n{"b')[:-1]
  assert _read(tmp_path / 'a', data) == [
    (1, 'not_an_object'),
    (2, {'a': 1}),
    (3, 'truncated_file'),
  ]


def _peak_bytes(path):
  """Returns (the number of objects, the last of them, most memory)."""
  tracemalloc.start()
  try:
    num, last = 0, None
    for num, last in read_objects(str(path), _MAX_BYTES):  # noqa: B007
      pass
    return num, last, tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize('start', [b'{\n"text": "', b'[{"text": "'])
def test_memory_of_a_long_text_is_bounded(tmp_path, start):
  path = tmp_path / 'a'
  path.write_bytes(gzip.compress(start) + gzip.compress(b'a' * (1 << 25)))
  num, drop, peak = _peak_bytes(path)
  assert (num, drop.reason) == (1, 'document_too_large')
  assert drop.excerpt == (start.lstrip(b'[') + b'a' * 200)[:200]
  assert peak < 16 << 20


@pytest.mark.parametrize('num_spaces', [0, 1 << 24])
def test_memory_of_a_long_array_is_bounded(tmp_path, num_spaces):
  before = b'[{}' + b' ' * num_spaces + b','
  # 1024 * 32 KiB = 32 MiB.
  element = b'{"text": "' + b'a' * (1 << 15) + b'"},\n'
  path = tmp_path / 'a'
  path.write_bytes(gzip.compress(before + element * 1024 + b'{"b": 1}]'))
  num, last, peak = _peak_bytes(path)
  assert (num, last) == (1026, {'b': 1})
  assert peak < 16 << 20


_SCALARS = st.one_of(st.none(), st.integers(), st.floats(), st.text())
_VALUES = _SCALARS | st.lists(_SCALARS, max_size=3)


@hypothesis.settings(max_examples=20)
@hypothesis.given(
  objects=st.lists(
    st.dictionaries(st.text(max_size=5), _VALUES, max_size=5), min_size=2
  ),
  ascii_only=st.booleans(),
  pack=st.sampled_from([bytes, gzip.compress]),
)
def test_any_objects(tmp_path_factory, objects, ascii_only, pack):
  lines = [json.dumps(value, ensure_ascii=ascii_only) for value in objects]
  path = tmp_path_factory.getbasetemp() / 'objects'
  found = _read(path, pack('\n'.join(lines).encode()))
  # By their text: NaN differs from itself.
  assert [num for num, _ in found] == [*range(1, len(lines) + 1)]
  assert list(map(repr, objects)) == [repr(value) for _, value in found]


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
    # A fault in an array ends it before its damage is met.
    assert reason == 'truncated_file' or b',' in data


@pytest.mark.parametrize(
  ('start', 'piece', 'num_bytes'),
  [
    (b'', b'\0', 200_000_000),
    (b'{"text": "', b'x', 90_000_000),
    (b'{"text": "', b'x', 600_000_000),
    (b'{"text": "', b'\\u0041', 600_000_000),
  ],
)
def test_line_bomb_takes_little_memory(tmp_path, start, piece, num_bytes):
  path = tmp_path / 'a.json.gz'
  with gzip.open(path, 'wb', compresslevel=1) as file:
    file.write(start)
    chunk = piece * (1_000_000 // len(piece))
    for _ in range(num_bytes // len(chunk)):
      file.write(chunk)
  taken = peak_above_idle(
    'import apache_beam.io.filesystems\n'
    'from pipelines.read_objects import read_objects',
    '((num, drop),) = read_objects(sys.argv[1], 64 << 20)\n'
    "assert (num, drop.reason) == (1, 'document_too_large')\n"
    'assert len(drop.excerpt) == 200',
    path,
  )
  assert taken < 300e6
