"""Lines of C4: what is stored, and every reason to drop one."""

import json

import pytest

from pipelines import c4
from pipelines.source import Drop


def test_all_features():
  line = (
    b'{"text": "a b", "timestamp": "2019", "url": "http://x", '
    b'"author": "z", "title": "", "other": 1}\r'
  )
  assert c4.parse_line(line) == {
    'text': 'a b',
    'timestamp': '2019',
    'url': 'http://x',
    'author': 'z',
    'title': '',
  }


def test_what_is_absent():
  expected = {'text': 'a', 'timestamp': '', 'url': ''}
  assert c4.parse_line(b'{"text": "a"}') == expected
  line = b'{"text": "a", "url": null, "timestamp": [], "author": 3}'
  assert c4.parse_line(line) == expected


@pytest.mark.parametrize(
  ('timestamp', 'stored'), [('17', '17'), ('1.5', '1.5'), ('true', '')]
)
def test_timestamp_that_is_no_string(timestamp, stored):
  line = f'{{"text": "a", "timestamp": {timestamp}}}'.encode()
  assert c4.parse_line(line)['timestamp'] == stored


@pytest.mark.parametrize(
  ('line', 'reason'),
  [
    (b'', 'empty_line'),
    (b' \r', 'empty_line'),
    (b'{"text": "\xff"}', 'invalid_utf8'),
    (b'{"text": "a"}\xff', 'invalid_utf8'),
    (b'{"text": "a"', 'malformed_json'),
    (b'{"text": "a"} {}', 'malformed_json'),
    (b'[' * 100_000, 'malformed_json'),
    (b'{"n": ' + b'1' * 5000 + b'}', 'malformed_json'),
    (b'[1]', 'not_an_object'),
    (b'null', 'not_an_object'),
    (b'{"url": "http://x"}', 'missing_text'),
    (b'{"text": null}', 'missing_text'),
    (b'{"text": ["a"]}', 'missing_text'),
    (b'{"text": ""}', 'empty_text'),
    (b'{"text": " \\n\\u00a0"}', 'empty_text'),
    (b'{"text": "a\\ud800"}', 'unpaired_surrogate'),
    (b'{"text": "a", "url": "\\udfff"}', 'unpaired_surrogate'),
  ],
)
def test_dropped_line(line, reason):
  with pytest.raises(Drop, match=f'^{reason}$') as raised:
    c4.parse_line(line)
  assert not raised.value.damage


def test_paired_surrogates_are_a_character():
  line = json.dumps({'text': '\N{GRINNING FACE}'}).encode()
  assert b'\\ud83d' in line
  assert c4.parse_line(line)['text'] == '\N{GRINNING FACE}'


def test_line_numbers_and_drops_of_a_file(tmp_path):
  path = tmp_path / 'a.json'
  path.write_bytes(b'{"text": "a"}\n\n[]\n{"text": "b"}')
  found = [
    (line_num, record.reason if isinstance(record, Drop) else record['text'])
    for line_num, record in c4.read_records(str(path))
  ]
  assert found == [(1, 'a'), (2, 'empty_line'), (3, 'not_an_object'), (4, 'b')]
