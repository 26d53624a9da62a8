"""One shard: its order, its parts, its index, and equal bytes."""

import hashlib
import tracemalloc

import pyarrow.parquet as pq
from group_records import encode_example, read_group_records
from grouping_jobs import make_job

from pipelines.reports import Tally
from pipelines.write_groups import shard_name, write_shard
from tff_fedfish.data import records
from tff_fedfish.data.manifest import DropExample
from tff_fedfish.data.time_order import time_key


def _row(group_id, text, timestamp=b'', url=b'', author=None):
  features = {'text': text, 'timestamp': timestamp, 'url': url}
  if author is not None:
    features['author'] = author
  example = encode_example(features)
  digest = hashlib.sha256(example).digest()
  words = len(text.split())
  # `author` is c4's first optional feature: bit 0.
  mask = int(author is not None)
  time = time_key(timestamp.decode()) + timestamp
  return group_id, time, url, digest, example, words, mask


def _write(directory, rows, **options):
  path = directory / shard_name(1, 4)
  options = {'max_record_bytes': 1000} | options
  job = make_job([], num_shards=4, **options)
  report = write_shard(str(path), 1, sorted(rows), job)
  return report, pq.read_table(path.with_suffix('.parquet')), path


def _first(group, text):
  return DropExample(group=group, excerpt=text)


def _texts(path):
  return [
    (
      record.group_id,
      record.part,
      [records.decode_example(example)['text'] for example in record.examples],
    )
    for record in read_group_records(path)
  ]


def test_order_and_index(tmp_path):
  rows = [
    *(_row(b'b', b'late one', b'2'), _row(b'a', b'x', b'9')),
    *(_row(b'b', b'early', b'1', b'/2'), _row(b'b', b'first', b'1', b'/1')),
  ]
  report, index, path = _write(tmp_path, rows)
  # By group; within b by timestamp, then url.
  assert _texts(path) == [
    (b'a', None, [b'x']),
    (b'b', None, [b'first', b'early', b'late one']),
  ]
  with open(path, 'rb') as file:
    stored = list(records.iterate_records(file, path))
  offsets = [offset for offset, _ in stored]
  sizes = [len(payload) for _, payload in stored]
  assert index.to_pydict() == {
    'group_id': [b'a', b'b'],
    'part': [0, 0],
    'shard': [1, 1],
    'offset': offsets,
    'num_examples': [1, 3],
    'num_bytes': sizes,
    # first + early + (late, one)
    'num_words': [1, 4],
  }
  data = path.read_bytes()
  assert report.shard.num_bytes == len(data)
  assert report.shard.sha256 == hashlib.sha256(data).hexdigest()
  assert report.shard.num_records == 2
  assert report.drops == {}


def test_group_in_three_parts(tmp_path):
  rows = [_row(b'g', b'%d' % i * 10, b'%d' % i) for i in range(5)]
  small = [_row(b'small', b'%d' % i * 10, b'%d' % i) for i in range(2)]
  # Two examples fit exactly, three do not: 2 + 2 + 1.
  report, index, path = _write(
    tmp_path,
    [*small, *rows],
    max_record_bytes=2 * len(rows[0][4]),
  )
  found = list(read_group_records(path))
  assert [(record.group_id, record.part) for record in found] == [
    (b'g', 0),
    (b'g', 1),
    (b'g', 2),
    (b'small', None),
  ]
  assert [len(record.examples) for record in found] == [2, 2, 1, 2]
  assert index.column('part').to_pylist() == [0, 1, 2, 0]
  assert report.shard.num_records == 4


def test_memory_does_not_depend_on_the_record(tmp_path):
  def row(i):
    return _row(b'a.com', b'%08d ' % i * 1000, b'2018-01-01')

  num_bytes = 8_000 * len(row(0)[4])
  assert num_bytes > 4 * (16 << 20)
  job = make_job([], max_record_bytes=256 << 20)
  tracemalloc.start()
  try:
    report = write_shard(str(tmp_path / 'x'), 0, map(row, range(8_000)), job)
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert (report.num_examples, report.shard.num_records) == (8_000, 1)
  # As large as what waits in memory, and its copy when that grows.
  assert peak < 2.5 * (16 << 20) < num_bytes
  (record,) = read_group_records(tmp_path / 'x')
  assert len(record.examples) == 8_000


def test_duplicates(tmp_path):
  rows = [
    _row(b'a', b'x', b'3'),  # the same text as at 1: dropped
    _row(b'a', b'x', b'1'),
    _row(b'a', b'y', b'2'),
    _row(b'b', b'x', b'1'),  # another group: kept
    _row(b'b', b'x', b'2', b'/url'),  # dropped
  ]
  report, index, path = _write(tmp_path, rows, drop_duplicates=True)
  assert _texts(path) == [(b'a', None, [b'x', b'y']), (b'b', None, [b'x'])]
  assert index.column('num_words').to_pylist() == [2, 1]
  assert report.drops == {'duplicate_text': Tally(2, _first('a', 'x'))}


def test_groups_with_times_of_several_kinds(tmp_path):
  rows = [
    # A number and a moment; in records of their own, and in one.
    *(_row(b'a', b'x', time) for time in (b'5', b'2018-01-01')),
    *(_row(b'b', b'y', time) for time in (b'', b'soon')),
    *(_row(b'c', b'z' * i, b'7') for i in range(1, 3)),
  ]
  for max_bytes in (1, 1 << 20):
    report, _, _ = _write(tmp_path, rows, max_record_bytes=max_bytes)
    assert report.num_mixed_time_groups == 1


def test_minimum(tmp_path):
  rows = [
    *(_row(b'a', b'%d' % i, b'%d' % i) for i in range(3)),
    # 3 of 2 texts.
    *(_row(b'b', b'%d' % (i // 2), b'%d' % i) for i in range(3)),
    _row(b'c', b'x'),
    *(_row(b'd', b'%d' % i, b'%d' % i) for i in range(3)),
  ]
  report, index, path = _write(
    tmp_path,
    rows,
    drop_duplicates=True,
    min_examples_per_group=3,
    # Each example is a part.
    max_record_bytes=1,
  )
  assert index.column('group_id').to_pylist() == [b'a'] * 3 + [b'd'] * 3
  assert [texts for _, _, texts in _texts(path)][:3] == [[b'0'], [b'1'], [b'2']]
  # 10 in = 6 out + 1 twin in b + 2 of b + 1 of c.
  num_drops = {reason: tally.num for reason, tally in report.drops.items()}
  assert num_drops == {'duplicate_text': 1, 'small_group': 3}
  assert report.drops['small_group'].first == _first('b', '0')
  assert report.num_examples == 6
