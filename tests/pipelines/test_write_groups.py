"""One shard: its order, its parts, its index, and equal bytes."""

import hashlib
import itertools

from pipelines.write_groups import shard_name, write_shard
from tff_fedfish.data import records

_NAMES = ('text', 'timestamp', 'url', 'author')


def _write(directory, blocks, *, features=_NAMES[:3], max_record_bytes=1000):
  directory.mkdir()
  return write_shard(
    directory, 1, 4, blocks, _NAMES, features, max_record_bytes
  )


def _values(text, timestamp=b'', url=b'', author=None):
  return (text, timestamp, url, author)


def test_shard_name():
  assert shard_name(1, 4) == 'groups-00001-of-00004.tfrecord'


def test_order_and_index(tmp_path):
  blocks = [
    [(b'b', [_values(b'late one', b'2')]), (b'a', [_values(b'x', b'9')])],
    [(b'b', [_values(b'early', b'1', b'/2'), _values(b'first', b'1', b'/1')])],
  ]
  shard, index = _write(tmp_path / 's', blocks)
  path = tmp_path / 's' / 'groups-00001-of-00004.tfrecord'
  groups = [
    (
      record.group_id,
      record.part,
      [records.decode_example(example)['text'] for example in record.examples],
    )
    for record in records.read_group_records(path)
  ]
  # By group; within b by timestamp, then url.
  assert groups == [
    (b'a', None, [b'x']),
    (b'b', None, [b'first', b'early', b'late one']),
  ]
  offsets = [offset for offset, _ in records.iterate_records(path)]
  sizes = [len(payload) for _, payload in records.iterate_records(path)]
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
  assert shard.num_bytes == len(data)
  assert shard.sha256 == hashlib.sha256(data).hexdigest()
  assert shard.num_records == 2


def test_any_order_of_blocks_gives_the_same_bytes(tmp_path):
  # Equal keys, equal times and urls, and one record twice: only the contents'
  # hash is left to order them by.
  group = [_values(text, b'1', b'/') for text in (b'x', b'y', b'z', b'y')]
  blocks = [[(b'g', [values])] for values in group] + [[(b'f', [group[0]])]]
  contents = set()
  for i, order in enumerate(itertools.permutations(blocks)):
    shard, index = _write(tmp_path / str(i), order)
    data = (tmp_path / str(i) / shard.name).read_bytes()
    contents.add((data, str(index.to_pydict())))
  assert len(contents) == 1
  assert index.column('num_examples').to_pylist() == [1, 4]


def test_group_in_three_parts(tmp_path):
  group = [_values(b'%d' % i * 10, b'%d' % i) for i in range(5)]
  example = records.encode_example(
    {'text': b'0' * 10, 'timestamp': b'0', 'url': b''}
  )
  # Two examples fit exactly, three do not: 2 + 2 + 1.
  shard, index = _write(
    tmp_path / 's',
    [[(b'small', group[:2]), (b'g', group)]],
    max_record_bytes=2 * len(example),
  )
  found = list(records.read_group_records(tmp_path / 's' / shard.name))
  assert [(record.group_id, record.part) for record in found] == [
    (b'g', 0),
    (b'g', 1),
    (b'g', 2),
    (b'small', None),
  ]
  assert [len(record.examples) for record in found] == [2, 2, 1, 2]
  assert index.column('part').to_pylist() == [0, 1, 2, 0]
  assert shard.num_records == 4


def test_example_larger_than_a_record_may_be(tmp_path):
  group = [_values(b'%d' % i * 10, b'%d' % i) for i in range(3)]
  shard, index = _write(tmp_path / 's', [[(b'g', group)]], max_record_bytes=1)
  assert index.column('num_examples').to_pylist() == [1, 1, 1]
  assert shard.num_records == 3


def test_missing_values_become_empty(tmp_path):
  group = [_values(b'x', b'1', author=b'me'), _values(b'y', b'2')]
  shard, _ = _write(tmp_path / 's', [[(b'g', group)]], features=_NAMES)
  (record,) = records.read_group_records(tmp_path / 's' / shard.name)
  examples = map(records.decode_example, record.examples)
  assert [example['author'] for example in examples] == [b'me', b'']


def test_shard_without_groups(tmp_path):
  shard, index = _write(tmp_path / 's', [])
  assert (tmp_path / 's' / shard.name).read_bytes() == b''
  assert (shard.num_bytes, shard.num_records, index.num_rows) == (0, 0, 0)
