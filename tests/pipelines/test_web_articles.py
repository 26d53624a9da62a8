"""C4 and CC-News: features, every reason to drop one, all formats, splits."""

import datetime
import decimal
import gzip
import json
import urllib.parse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from group_records import encode_example, write_record

from pipelines import splits
from pipelines.source import TIME_NOT_READ, Drop, beginning, load_source
from pipelines.splits import SplitRule
from pipelines.web_articles import parse_article, to_record
from tff_fedfish.errors import UserError

_C4 = load_source('c4')
_CC_NEWS = load_source('cc_news')
_MAX_BYTES = 1 << 20


def _to_record(value, max_document_bytes=100):
  return to_record(value, max_document_bytes, ('author', 'title'))


def test_all_features():
  value = {
    # 33 characters of 3 bytes and one more: 100 bytes, the longest that fit.
    'text': '中' * 33 + 'a',
    'timestamp': '2019',
    # Only the text counts.
    'url': 'http://x' + 'y' * 200,
    'author': 'z',
    'title': '',
    'other': 1,
  }
  expected = {name: value[name] for name in value if name != 'other'}
  assert _to_record(value) == expected


def test_what_is_absent():
  expected = {'text': 'a', 'timestamp': '', 'url': ''}
  assert _to_record({'text': 'a'}) == expected
  value = {'text': 'a', 'url': None, 'author': 3}
  for timestamp in (None, '', float('nan')):
    assert _to_record({**value, 'timestamp': timestamp}) == expected
  not_read = expected | {TIME_NOT_READ: ''}
  for timestamp in ([], {}, True, float('inf'), decimal.Decimal(1)):
    assert _to_record({**value, 'timestamp': timestamp}) == not_read
  for timestamp in (17, -1, 1.5):
    found = _to_record({**value, 'timestamp': timestamp})
    assert found['timestamp'] == str(timestamp)


@pytest.mark.parametrize(
  ('value', 'reason'),
  [
    ({'url': 'x'}, 'missing_text'),
    ({'text': ['a']}, 'missing_text'),
    ({'text': ''}, 'empty_text'),
    ({'text': ' \n\u00a0'}, 'empty_text'),
    ({'text': 'a\ud800'}, 'unpaired_surrogate'),
    ({'text': 'a', 'url': '\udfff'}, 'unpaired_surrogate'),
    ({'text': 'a', 'title': 'b\ud83d'}, 'unpaired_surrogate'),
    ({'text': 'x' * 101}, 'document_too_large'),
    # 33 characters of 3 bytes are 99, and 2 more 101.
    ({'text': '中' * 33 + 'ab'}, 'document_too_large'),
  ],
)
def test_dropped(value, reason):
  with pytest.raises(Drop, match=f'^{reason}$') as raised:
    _to_record(value)
  assert not raised.value.damage


def test_beginnings_of_objects():
  for value, shown in (
    ({'text': None, 'n': [float('nan')]}, b'{"text": null, "n": [NaN]}'),
    ({'date': datetime.date(2019, 4, 25)}, b'{"date": "2019-04-25"}'),
    ({'text': 'a\ud800'}, b'{"text": "a\\ud800"}'),
    ({'text': 'x' * 300}, b'{"text": "' + b'x' * 190),
  ):
    assert beginning(value) == shown
  deep = []
  for _ in range(100_000):
    deep = [deep]
  # Too deep to show.
  assert beginning({'more': deep}) == b''


def _read(path, source=_C4, max_document_bytes=_MAX_BYTES):
  return [
    (num, record.reason if isinstance(record, Drop) else record)
    for num, record in source.read_records(str(path), max_document_bytes)
  ]


def test_real_c4(shared_data, tmp_path):
  path = shared_data('c4_en_sample_a') / 'c4-train.00000-of-00001.json.gz'
  found = _read(path)
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    lines = [json.loads(line) for line in file]
  assert [num for num, _ in found] == [*range(1, 1001)]
  assert [record for _, record in found] == lines
  hosts = {urllib.parse.urlsplit(record['url']).netloc for _, record in found}
  assert len(hosts) == 998
  # The same as a table, and as TensorFlow Datasets stores it.
  pq.write_table(
    pa.Table.from_pylist(lines), tmp_path / 'a', row_group_size=300
  )
  assert _read(tmp_path / 'a') == found
  with open(tmp_path / 'b', 'wb') as file:
    for line in lines:
      features = {name: value.encode() for name, value in line.items()}
      features['content-length'] = b'17'
      features['content-type'] = b'text/html'
      write_record(file, encode_example(features))
  assert _read(tmp_path / 'b') == found


@pytest.mark.parametrize(
  ('path', 'part'),
  [
    ('c4-train.00000-of-01024.json.gz', 'train'),
    ('c4-validation.00000-of-00008.json.gz', 'validation'),
    ('gs://b/c4/en/3.1.0/c4-train.tfrecord-00003-of-01024', 'train'),
    ('c4-de-validation.json', 'validation'),
  ],
)
def test_split(path, part):
  assert _C4.split(path, {'text': 'a'}) == part
  assert part in _C4.split_names


@pytest.mark.parametrize(
  ('name', 'found'),
  [
    ('a.json', 'neither'),
    ('training.json', 'neither'),
    ('train-and-validation.json', 'both'),
  ],
)
def test_name_without_split_is_refused_before_a_file_is_read(name, found):
  paths = ['/c4-train.json', f'/train/{name}']
  message = (
    "file names, which must hold the word 'train' or 'validation', but "
    f"'{name}' holds {found}. Rename the file, as in"
  )
  with pytest.raises(UserError, match=message):
    splits.split_names(SplitRule(kind='source'), _C4, paths)


# The two layouts of one article.
_ROW = {
  'title': 'T',
  'text': 'One two.',
  'domain': 'a.com',
  'date': '2018-01-02 03:04:05',
  'description': 'D',
  'url': 'http://a.com/1',
  'image_url': 'http://a.com/1.png',
}
_CRAWLED = {
  'authors': ['Ann', 'Bob'],
  'date_publish': '2018-01-02 03:04:05',
  'description': 'D',
  'image_url': 'http://a.com/1.png',
  'maintext': 'One two.',
  'source_domain': 'a.com',
  'title': 'T',
  'url': 'http://a.com/1',
}
_RECORD = {
  'text': 'One two.',
  'timestamp': '2018-01-02 03:04:05',
  'url': 'http://a.com/1',
  'description': 'D',
  'title': 'T',
}


def _parse(value):
  return parse_article(value, 100)


def test_both_layouts(tmp_path):
  crawled = {**_RECORD, 'author': 'Ann, Bob'}
  path = tmp_path / 'a.json'
  path.write_text(f'{json.dumps(_CRAWLED)}\n{json.dumps(_ROW)}')
  assert _read(path, _CC_NEWS) == [(1, crawled), (2, _RECORD)]
  path.write_text(json.dumps(_CRAWLED, indent=4))
  assert _read(path, _CC_NEWS) == [(1, crawled)]


@pytest.mark.parametrize(
  ('change', 'expected'),
  [
    ({'authors': []}, {}),
    ({'authors': [None, 'Bob', 3]}, {'author': 'Bob'}),
    ({'authors': 'Ann'}, {'author': 'Ann'}),
    ({'author': 'Cid'}, {'author': 'Cid'}),
    ({'date_publish': None}, {'author': 'Ann, Bob', 'timestamp': ''}),
    (
      {'date_publish': '2018-01-02T03:04:05+00:00'},
      {'author': 'Ann, Bob', 'timestamp': '2018-01-02T03:04:05+00:00'},
    ),
  ],
)
def test_changed_article(change, expected):
  assert _parse({**_CRAWLED, **change}) == {**_RECORD, **expected}


@pytest.mark.parametrize('url', [None, '', ' ', float('nan')])
def test_domain_stands_for_a_url(url):
  kept = url if isinstance(url, str) else ''
  expected = {**_RECORD, 'url': kept, 'domain': 'a.com'}
  assert _parse({**_ROW, 'url': url}) == expected
  del expected['domain']
  assert _parse({**_ROW, 'url': url, 'domain': None}) == expected
  found = _parse({**_CRAWLED, 'url': url})
  assert (found['url'], found['domain']) == (kept, 'a.com')


def test_missing_columns_of_a_table_are_nan():
  nan = float('nan')
  value = {**_ROW, 'title': nan, 'description': nan, 'date': nan}
  expected = {'text': 'One two.', 'timestamp': '', 'url': 'http://a.com/1'}
  assert _parse(value) == expected


_NAMES = {
  'text': 'maintext',
  'date': 'date_publish',
  'author': 'authors',
  'domain': 'source_domain',
}


@pytest.mark.parametrize('names', [{}, _NAMES], ids=['table', 'crawler'])
def test_columns_of_a_table(tmp_path, names):
  article = {
    'text': 'a',
    'date': '2019-04-25',
    'author': 'b',
    'description': 'c',
    'title': 'd',
    'domain': 'example.com',
  }
  row = {names.get(name, name): value for name, value in article.items()}
  table = pa.Table.from_pylist([row]).append_column(
    'crawled_for', pa.array([1], pa.duration('ns'))
  )
  pq.write_table(table, tmp_path / 'a.parquet')
  expected = {**article, 'timestamp': '2019-04-25', 'url': ''}
  del expected['date']
  assert _read(tmp_path / 'a.parquet', _CC_NEWS) == [(1, expected)]


def test_news_are_held_out():
  assert _CC_NEWS.split_names == ('held_out',)
  assert _CC_NEWS.split('train.json', _RECORD) == 'held_out'
