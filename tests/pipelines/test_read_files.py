"""Blocks of files: no record is lost, whatever the files hold."""

import dataclasses
import hashlib

import hypothesis
import hypothesis.strategies as st
from grouping_jobs import make_job, write_lines

from pipelines.blocks import decode_block
from pipelines.pieces import PieceBlocks
from pipelines.read_files import FileReader, num_words
from pipelines.reports import excerpt
from pipelines.splits import SplitRule
from tff_fedfish.data import records
from tff_fedfish.data.corpus_index import shard_of
from tff_fedfish.data.time_order import time_key


def _read(paths, **options):
  """Returns ([(shard, row)], blocks, reader) of some files."""
  job = make_job([], **options)
  reader = FileReader(job, PieceBlocks(0, 1, job.block_bytes))
  task = [(str(path), path.name) for path in paths]
  blocks = list(reader.read(task))
  rows = [
    (key[0], row)
    for key, block in blocks
    for row in decode_block(block).to_pylist()
  ]
  return rows, blocks, reader


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
  rows, _, reader = _read([path], num_shards=1)
  example = records.encode_example(
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
    'records_in': 6,
    'parts': [{'num': 3, 'first': _first(1, 'one')}],
    'drops': {
      'malformed_json': {'num': 2, 'first': _first(2, '{bad')},
      'missing_url': {'num': 1, 'first': _first(3, 'two')},
    },
    'damage': None,
    'damage_byte': None,
  }


def test_small_blocks_hold_the_same_records(tmp_path):
  lines = [_line(f'{i}', f'http://h{i % 7}/') for i in range(40)]
  path = write_lines(tmp_path / 'a', lines)
  rows, large, _ = _read([path])
  # One block for each shard that got a record.
  assert len(large) == len({key[0] for key, _ in large}) > 1
  small_rows, small, _ = _read([path], block_bytes=150)
  # An example has 50 to 60 bytes: 3 to a block, of which some share a shard.
  assert len(small) > 20
  key = str
  assert sorted(small_rows, key=key) == sorted(rows, key=key)


def test_small_files_share_blocks(tmp_path):
  paths = [
    write_lines(tmp_path / f'{i}', [_line(f'{i}', 'http://a/')])
    for i in range(5)
  ]
  rows, blocks, reader = _read(paths)
  assert (len(blocks), len(rows), len(reader.reports)) == (1, 5, 5)


def test_split_and_shard(tmp_path):
  path = write_lines(
    tmp_path / 'a',
    [
      _line('early', 'http://a/', timestamp='2017-12-31T23:59:59Z'),
      _line('late', 'http://a/', timestamp='2018-01-01T00:00:00Z'),
      _line('never', 'http://a/', timestamp='soon'),
    ],
  )
  rule = SplitRule(kind='time', time='2018-01-01')
  rows, _, reader = _read([path], split=rule, num_shards=4)
  # ca97...48bb is the digest of b'a': shard 3 of 4; the second part's is 4 + 3.
  assert sorted(shard for shard, _ in rows) == [3, 7]
  (report,) = reader.reports
  shown = [tally.first.excerpt for tally in report.parts]
  assert shown == ['early', 'late']
  assert report.drops['malformed_timestamp'].first.excerpt == 'soon'


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
