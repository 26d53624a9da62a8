"""Blocks of a file: no record is lost, whatever the file holds."""

import collections
import dataclasses
import hashlib
import json

import hypothesis
import hypothesis.strategies as st
import pytest

from pipelines import c4, keys
from pipelines.read_groups import FileReport, read_groups, shard_of


def _read(path, lines, *, key=keys.host_key, num_shards=3, block_bytes=1 << 20):
  path.write_bytes(b'\n'.join(lines))
  report = FileReport(path.name)
  blocks = list(
    read_groups(
      c4.SOURCE, str(path), key, num_shards, report, block_bytes=block_bytes
    )
  )
  return blocks, report


def _line(text, url, **more):
  return json.dumps({'text': text, 'url': url, **more}).encode()


def test_report_by_hand(tmp_path):
  lines = [
    _line('one', 'http://a/1'),  # 1: kept
    b'{',  # 2: malformed_json
    _line('two', ''),  # 3: missing_url
    _line('three', 'http://b/', title='t'),  # 4: kept
    b'{',  # 5: malformed_json again
    _line('four', 'http://a/2'),  # 6: kept
  ]
  blocks, report = _read(tmp_path / 'x.json', lines, num_shards=1)
  assert blocks == [
    (
      0,
      [
        (
          b'a',
          [
            (b'one', b'', b'http://a/1', None, None),
            (b'four', b'', b'http://a/2', None, None),
          ],
        ),
        (b'b', [(b'three', b'', b'http://b/', None, b't')]),
      ],
    )
  ]
  assert dataclasses.asdict(report) == {
    'name': 'x.json',
    'records_in': 6,
    'records_out': 3,
    'drops': {'malformed_json': 2, 'missing_url': 1},
    'first_drops': {'malformed_json': 2, 'missing_url': 3},
    'damage': None,
    'features': {'title'},
  }


def test_small_blocks_hold_the_same_records(tmp_path):
  lines = [_line(f'{i}', f'http://h{i % 7}/') for i in range(40)]
  large, _ = _read(tmp_path / 'a', lines)
  small, _ = _read(tmp_path / 'a', lines, block_bytes=30)
  # One block for each shard that got a record.
  assert len(large) == len({shard for shard, _ in large}) > 1
  # Each record has 11 or 12 bytes: 3 to a block, of which some share a shard.
  assert len(small) > 20
  assert _records(small) == _records(large)


def test_shard_of_a_group_by_hand():
  # The digest of b'a' is ca978112...48bb: a number whose last byte is 0xbb.
  assert hashlib.sha256(b'a').hexdigest().endswith('bb')
  assert shard_of(b'a', 16) == 0xB
  assert shard_of(b'a', 256) == 0xBB


_VALUES = st.one_of(
  st.none(), st.text(), st.sampled_from(['http://a/', 'http://b:1/', 'x'])
)
_LINES = st.lists(
  st.one_of(
    st.binary(max_size=20).filter(lambda line: b'\n' not in line),
    st.fixed_dictionaries(
      {}, optional={name: _VALUES for name in ('text', 'url', 'author')}
    ).map(lambda value: json.dumps(value).encode()),
  )
)


@pytest.mark.parametrize('key', ['host', 'domain', 'author'])
@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(lines=_LINES, num_shards=st.integers(1, 4))
def test_nothing_is_lost(tmp_path_factory, key, lines, num_shards):
  path = tmp_path_factory.mktemp('any') / 'a'
  blocks, report = _read(path, lines, key=keys.KEYS[key], num_shards=num_shards)
  # A last line without a byte is no line.
  num_lines = len(lines) - (not lines or not lines[-1]) if lines else 0
  if not path.read_bytes().startswith(b'\x1f\x8b'):
    assert report.records_in == num_lines
  stored = sum(_records(blocks).values())
  assert stored == report.records_out
  assert report.records_in == stored + sum(report.drops.values())
  assert report.drops.keys() == report.first_drops.keys()


def _records(blocks):
  return collections.Counter(
    (shard, group_id, values)
    for shard, block in blocks
    for group_id, group in block
    for values in group
  )
