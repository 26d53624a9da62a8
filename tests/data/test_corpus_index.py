"""The index is read by row groups, and only what is asked for."""

import hashlib
from unittest import mock

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tff_fedfish.data import corpus_index
from tff_fedfish.errors import UserError

# Client b has two records, c three.
_ROWS = {
  'group_id': [b'a', b'b', b'b', b'c', b'c', b'c'],
  'part': [0, 0, 1, 0, 1, 2],
  'shard': [1, 0, 0, 2, 2, 2],
  'offset': [0, 5, 1 << 40, 1, 2, 3],
  'num_examples': [1, 2, 3, 4, 5, 6],
  'num_bytes': [10, 20, 30, 40, 50, 1 << 40],
  'num_words': [7, 0, 7, 0, 7, 0],
}


def _write(directory, rows, schema=corpus_index.INDEX_SCHEMA, **kwargs):
  pq.write_table(
    pa.table(rows, schema=schema), directory / 'index.parquet', **kwargs
  )


@pytest.mark.parametrize('rows_at_once', [1, 2, 4, 6])
def test_locations_and_columns(tmp_path, rows_at_once):
  _write(tmp_path, _ROWS, row_group_size=rows_at_once)
  locations = corpus_index.read_locations(tmp_path)
  assert list(locations.client_ids) == [b'a', b'b', b'c']
  assert locations.row_limits.tolist() == [0, 1, 3, 6]
  assert locations.shards.tolist() == _ROWS['shard']
  assert locations.offsets.tolist() == _ROWS['offset']
  types = [array.dtype for array in locations[1:]]
  assert types == [np.int32, np.int32, np.int64]
  for name in ('num_examples', 'num_bytes', 'num_words'):
    values = corpus_index.read_column(tmp_path, name, 6)
    assert (values.dtype, values.tolist()) == (np.int64, _ROWS[name])


@mock.patch.object(corpus_index, '_GROUPS_AT_ONCE', 3)
@hypothesis.settings(max_examples=30)
@hypothesis.given(
  st.dictionaries(
    st.binary(max_size=5),
    st.lists(
      st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)),
      min_size=1,
      max_size=3,
    ),
  )
)
def test_fingerprint(id_to_parts):
  names = ('group_id', 'part', 'num_examples', 'num_words')
  rows, groups = [], []
  for group_id, parts in sorted(id_to_parts.items()):
    rows += [
      dict(zip(names, (group_id, i, *sizes), strict=True))
      for i, sizes in enumerate(parts)
    ]
    groups.append((group_id, *map(sum, zip(*parts, strict=True))))
  # The definition: ids, then examples, then words of all groups.
  hasher = hashlib.sha256()
  for group_id, _, _ in groups:
    hasher.update(len(group_id).to_bytes(8, 'big') + group_id)
  for position in (1, 2):
    for group in groups:
      hasher.update(group[position].to_bytes(8, 'big'))
  index = pa.Table.from_pylist(rows, corpus_index.INDEX_SCHEMA)
  pieces = pa.concat_tables([index[:3], index[3:3], index[3:]])
  for table in (index, pieces):
    assert corpus_index.fingerprint_of_index(table) == hasher.hexdigest()


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('shard', [1 << 40] * 6),
    ('group_id', [None] * 6),
    ('part', None),
  ],
)
def test_columns_of_something_else(tmp_path, name, values):
  rows = _ROWS | {name: values}
  if values is None:
    del rows[name]
  pq.write_table(pa.table(rows), tmp_path / 'index.parquet')
  with pytest.raises(UserError, match='index.parquet, but it is unreadable'):
    corpus_index.read_locations(tmp_path)
