"""Articles in both layouts of CC-News, in all formats."""

import collections
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import cc_news
from pipelines.source import Drop

_MAX_BYTES = 1 << 20

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
  'date_download': '2019-01-01 00:00:00',
  'date_modify': None,
  'date_publish': '2018-01-02 03:04:05',
  'description': 'D',
  'filename': 'x.json',
  'image_url': 'http://a.com/1.png',
  'language': 'en',
  'localpath': None,
  'maintext': 'One two.',
  'source_domain': 'a.com',
  'title': 'T',
  'title_page': None,
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
  return cc_news.parse_article(value, 100)


def _read(path):
  return [
    (num, record.reason if isinstance(record, Drop) else record)
    for num, record in cc_news.SOURCE.read_records(str(path), _MAX_BYTES)
  ]


def test_row():
  assert _parse(_ROW) == _RECORD


def test_crawled_article():
  assert _parse(_CRAWLED) == {**_RECORD, 'author': 'Ann, Bob'}


@pytest.mark.parametrize(
  ('change', 'expected'),
  [
    ({'authors': []}, {}),
    ({'authors': None}, {}),
    ({'authors': ['Ann']}, {'author': 'Ann'}),
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


@pytest.mark.parametrize(
  ('change', 'reason'),
  [
    ({'text': None}, 'missing_text'),
    ({'text': float('nan')}, 'missing_text'),
    ({'text': ''}, 'empty_text'),
    ({'text': '\n'}, 'empty_text'),
    ({'text': 'x' * 101}, 'document_too_large'),
    ({'description': '\ud800'}, 'unpaired_surrogate'),
    ({'url': None, 'domain': '\ud800'}, 'unpaired_surrogate'),
  ],
)
def test_dropped_article(change, reason):
  with pytest.raises(Drop, match=f'^{reason}$'):
    _parse({**_ROW, **change})


def test_missing_columns_of_a_table_are_nan():
  nan = float('nan')
  value = {**_ROW, 'title': nan, 'description': nan, 'date': nan}
  expected = {'text': 'One two.', 'timestamp': '', 'url': 'http://a.com/1'}
  assert _parse(value) == expected


@pytest.mark.parametrize('indent', [None, 2, 4])
def test_one_article_in_a_file(tmp_path, indent):
  path = tmp_path / 'a.json'
  path.write_text(json.dumps(_CRAWLED, indent=indent))
  assert _read(path) == [(1, {**_RECORD, 'author': 'Ann, Bob'})]


def test_lists_in_a_table(tmp_path):
  path = tmp_path / 'a.parquet'
  without = {**_CRAWLED, 'authors': None, 'maintext': None}
  pq.write_table(pa.Table.from_pylist([_CRAWLED, without]), path)
  record = {**_RECORD, 'author': 'Ann, Bob'}
  assert _read(path) == [(1, record), (2, 'missing_text')]


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
  assert _read(tmp_path / 'a.parquet') == [(1, expected)]


def test_free_articles(shared_data, tmp_path):
  path = shared_data('ccnews_like_free') / 'news.jsonl.gz'
  found = _read(path)
  with gzip.open(path, 'rt', encoding='utf-8') as file:
    lines = [json.loads(line) for line in file]
  assert [num for num, _ in found] == [*range(1, 4007)]
  for line, (_, record) in zip(lines, found, strict=True):
    names = ('title', 'text', 'description', 'url', 'author')
    expected = {
      name: line[name] for name in names if line.get(name) is not None
    }
    assert record == {**expected, 'timestamp': line['date'] or ''}
  counts = collections.Counter(record.get('author') for _, record in found)
  counts.pop('', None)
  counts.pop(None, None)
  assert len(counts) == 1_096
  pq.write_table(pa.Table.from_pylist(lines[::4]), tmp_path / 'a')
  as_rows = [record for _, record in _read(tmp_path / 'a')]
  assert as_rows == [record for _, record in found[::4]]


def test_split():
  assert cc_news.SOURCE.split_names == ('held_out',)
  assert cc_news.split('train.json', _RECORD) == 'held_out'
