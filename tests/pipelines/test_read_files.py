"""Rows of files: no record is lost, whatever the files hold."""

import dataclasses
import hashlib

import hypothesis
import hypothesis.strategies as st
from group_records import encode_example
from grouping_jobs import make_job, write_lines

from pipelines.read_files import FileReader, num_words
from pipelines.reports import Input, excerpt
from pipelines.rows import ROW_SCHEMA
from tff_fedfish.data.corpus_index import shard_of
from tff_fedfish.data.time_order import time_key


def _read(paths, **options):
  """Returns ([(shard, row)], reader) of some files."""
  rows = []

  class Rows:
    def add(self, shard, row):
      rows.append((shard, dict(zip(ROW_SCHEMA.names, row, strict=True))))

  reader = FileReader(make_job([], **options), Rows())
  reader.read([Input(str(path), path.name) for path in paths])
  return rows, reader


def _line(text, url, **more):
  return {'text': text, 'url': url, **more}


def _first(line, shown, file='x.json'):
  return {'file': file, 'line': line, 'group': None, 'excerpt': shown}


def test_report_by_hand(tmp_path):
  path = write_lines(
    tmp_path / 'x.json',
    [
      _line('one', 'http://a/1', timestamp='1'),  # 1: kept
      b'{bad',  # 2: malformed_json
      _line('two', ''),  # 3: missing_url
      _line('three of', 'http://b/', title='t'),  # 4: kept
      b'{',  # 5: malformed_json again
      _line('four', 'http://a/2'),  # 6: kept
    ],
  )
  rows, reader = _read([path], num_shards=1)
  example = encode_example(
    {'text': b'one', 'timestamp': b'1', 'url': b'http://a/1'}
  )
  assert rows[0] == (
    0,
    {
      'group_id': b'a',
      'time': time_key('1') + b'1',
      'url': b'http://a/1',
      'sha256': hashlib.sha256(example).digest(),
      'example': example,
      'num_words': 1,
      'features': 0,
    },
  )
  # `title` is c4's second optional feature: bit 1, for every later record.
  columns = [
    (row['group_id'], row['num_words'], row['features']) for _, row in rows
  ]
  assert columns == [(b'a', 1, 0), (b'b', 2, 2), (b'a', 1, 2)]
  assert reader.features == 2
  (report,) = reader.reports
  assert dataclasses.asdict(report) == {
    'name': 'x.json',
    'start': 0,
    'records_in': 6,
    'parts': (3,),
    'drops': {
      'malformed_json': {'num': 2, 'first': _first(2, '{bad')},
      'missing_url': {'num': 1, 'first': _first(3, 'two')},
    },
    'damage': None,
    'times_not_read': 0,
  }


def test_an_example_is_bounded_with_all_its_features(tmp_path):
  # Of 100 bytes and 1 MiB; as lines, both are short enough.
  lines = [
    _line('a', 'http://a/', title='x' * ((1 << 20) + extra))
    for extra in (0, 150)
  ]
  path = write_lines(tmp_path / 'x.json', lines)
  rows, reader = _read([path], max_document_bytes=100)
  assert len(rows) == 1
  (report,) = reader.reports
  assert report.drops['document_too_large'].num == 1


def test_shard_of_a_group_by_hand():
  # The digest of b'a' is ca978112...48bb: a number whose last byte is 0xbb.
  assert hashlib.sha256(b'a').hexdigest().endswith('bb')
  assert shard_of(b'a', 16) == 0xB
  assert shard_of(b'a', 256) == 0xBB


def test_excerpt_is_short_and_printable():
  assert excerpt(b'a\n b\xff' + b'x' * 100) == 'a b\\xff' + 'x' * 75


@hypothesis.given(
  st.text(
    st.sampled_from('ab \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x00\x85\xa0\u2003')
  )
)
def test_words_are_counted_as_split_does(text):
  assert num_words(text, text.encode()) == len(text.split())
