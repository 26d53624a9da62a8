"""Features of pages and articles, and every reason to drop one."""

import datetime
import json

import pytest

from pipelines.c4 import to_record
from pipelines.source import Drop


def _to_record(value, max_document_bytes=100):
  return to_record(value, max_document_bytes, ('author', 'title'))


def test_all_features():
  value = {
    'text': 'a b',
    'timestamp': '2019',
    'url': 'http://x',
    'author': 'z',
    'title': '',
    'other': 1,
  }
  expected = {name: value[name] for name in value if name != 'other'}
  assert _to_record(value) == expected


def test_what_is_absent():
  expected = {'text': 'a', 'timestamp': '', 'url': ''}
  assert _to_record({'text': 'a'}) == expected
  value = {'text': 'a', 'url': None, 'timestamp': [], 'author': 3}
  assert _to_record(value) == expected


@pytest.mark.parametrize(
  ('timestamp', 'stored'),
  [
    (17, '17'),
    (-1, '-1'),
    (1.5, '1.5'),
    (True, ''),
    (float('nan'), ''),
    (float('inf'), ''),
    ({}, ''),
  ],
)
def test_timestamp_that_is_no_string(timestamp, stored):
  value = {'text': 'a', 'timestamp': timestamp}
  assert _to_record(value)['timestamp'] == stored


@pytest.mark.parametrize(
  ('value', 'reason', 'excerpt'),
  [
    ({'url': 'x'}, 'missing_text', b'{"url": "x"}'),
    ({'text': None}, 'missing_text', b'{"text": null}'),
    ({'text': float('nan')}, 'missing_text', b'{"text": NaN}'),
    ({'text': ['a']}, 'missing_text', b'{"text": ["a"]}'),
    (
      {'date': datetime.date(2019, 4, 25)},
      'missing_text',
      b'{"date": "2019-04-25"}',
    ),
    ({'text': ''}, 'empty_text', b'{"text": ""}'),
    ({'text': ' \n\u00a0'}, 'empty_text', b'{"text": " \\n\xc2\xa0"}'),
    ({'text': 'a\ud800'}, 'unpaired_surrogate', b'a\\ud800'),
    (
      {'text': 'a', 'url': '\udfff'},
      'unpaired_surrogate',
      b'\\udfff',
    ),
    ({'text': 'a', 'title': 'b\ud83d'}, 'unpaired_surrogate', b'b\\ud83d'),
    ({'text': 'x' * 101}, 'document_too_large', b'x' * 101),
    ({'text': 'x' * 300}, 'document_too_large', b'x' * 200),
    # 33 characters of 3 bytes are 99, and 2 more 101.
    (
      {'text': '中' * 33 + 'ab'},
      'document_too_large',
      '中'.encode() * 33 + b'ab',
    ),
  ],
)
def test_dropped(value, reason, excerpt):
  with pytest.raises(Drop, match=f'^{reason}$') as raised:
    _to_record(value)
  assert not raised.value.damage
  assert raised.value.excerpt == excerpt


def test_value_too_deep_to_show():
  value = {'text': None, 'more': []}
  inner = value['more']
  for _ in range(100_000):
    inner.append([])
    inner = inner[0]
  with pytest.raises(Drop, match='^missing_text$') as raised:
    _to_record(value)
  assert raised.value.excerpt == b''


def test_largest_document():
  for text in ('x' * 100, '中' * 33 + 'a'):
    assert _to_record({'text': text})['text'] == text
  # Only the text counts.
  value = {'text': 'a', 'url': 'x' * 200, 'title': '中' * 100}
  assert _to_record(value)['url'] == 'x' * 200


def test_paired_surrogates_are_a_character():
  line = json.dumps({'text': '\N{GRINNING FACE}'})
  assert '\\ud83d' in line
  assert _to_record(json.loads(line))['text'] == '\N{GRINNING FACE}'
