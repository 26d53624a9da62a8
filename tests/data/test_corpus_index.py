"""The index is read by groups of rows, and only what is asked for."""

import hashlib
import io
import shutil

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tff_fedfish.data import corpus_index
from tff_fedfish.data.grouped_corpus import GroupedCorpus
from tff_fedfish.errors import UserError

# Client b has two records, c three, in a group of rows each after the first.
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
def test_locations(tmp_path, rows_at_once):
  _write(tmp_path, _ROWS, row_group_size=rows_at_once)
  found = corpus_index.read_locations(tmp_path)
  assert list(found.client_ids) == [b'a', b'b', b'c']
  assert found.row_limits.tolist() == [0, 1, 3, 6]
  assert found.shards.tolist() == _ROWS['shard']
  assert found.offsets.tolist() == _ROWS['offset']
  assert [array.dtype for array in found[1:]] == [np.int32, np.int32, np.int64]


@pytest.mark.parametrize('rows_at_once', [1, 4, 6])
@pytest.mark.parametrize('name', ['num_examples', 'num_bytes', 'num_words'])
def test_column(tmp_path, rows_at_once, name):
  _write(tmp_path, _ROWS, row_group_size=rows_at_once)
  found = corpus_index.read_column(tmp_path, name)
  assert (found.dtype, found.tolist()) == (np.int64, _ROWS[name])


def _fingerprint_of(groups):
  """The definition: (id, examples, words) of each group, one after another."""
  hasher = hashlib.sha256()
  for group_id, _, _ in groups:
    hasher.update(len(group_id).to_bytes(8, 'big') + group_id)
  for position in (1, 2):
    for group in groups:
      hasher.update(group[position].to_bytes(8, 'big'))
  return hasher.hexdigest()


def test_fingerprint_of_an_index():
  # b has 2 + 3 examples and 0 + 7 words, c 4 + 5 + 6 and 0 + 7 + 0.
  expected = _fingerprint_of([(b'a', 1, 7), (b'b', 5, 7), (b'c', 15, 7)])
  index = pa.table(_ROWS, schema=corpus_index.INDEX_SCHEMA)
  assert corpus_index.fingerprint_of_index(index) == expected
  in_parts = pa.concat_tables([index[:3], index[3:3], index[3:]])
  assert corpus_index.fingerprint_of_index(in_parts) == expected


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
def test_fingerprint_of_any_groups(id_to_parts):
  names = ('group_id', 'part', 'num_examples', 'num_words')
  rows, groups = [], []
  for group_id, parts in sorted(id_to_parts.items()):
    rows += [
      dict(zip(names, (group_id, i, *sizes), strict=True))
      for i, sizes in enumerate(parts)
    ]
    groups.append((group_id, *map(sum, zip(*parts, strict=True))))
  index = pa.Table.from_pylist(rows, corpus_index.INDEX_SCHEMA)
  found = corpus_index.fingerprint_of_index(index)
  assert found == _fingerprint_of(groups)


def test_no_rows(tmp_path):
  _write(tmp_path, {name: [] for name in _ROWS})
  found = corpus_index.read_locations(tmp_path)
  assert list(found.client_ids) == []
  assert found.row_limits.tolist() == [0]
  assert corpus_index.read_column(tmp_path, 'num_words').tolist() == []


def test_other_types_of_the_same_values(tmp_path):
  schema = corpus_index.INDEX_SCHEMA
  wider = [pa.large_binary(), *[pa.int64()] * 6]
  schema = pa.schema(list(zip(schema.names, wider, strict=True)))
  _write(tmp_path, _ROWS, schema)
  found = corpus_index.read_locations(tmp_path)
  assert list(found.client_ids) == [b'a', b'b', b'c']
  assert found.shards.tolist() == _ROWS['shard']


def test_missing(tmp_path):
  with pytest.raises(
    UserError, match='must hold index.parquet, but it is missing. Copy'
  ):
    corpus_index.read_locations(tmp_path)


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('offset', ['one'] * 6),
    ('shard', [1 << 40] * 6),
    ('group_id', [None] * 6),
    ('part', [None] * 6),
  ],
)
def test_columns_of_something_else(tmp_path, name, values):
  pq.write_table(pa.table(_ROWS | {name: values}), tmp_path / 'index.parquet')
  with pytest.raises(UserError, match='index.parquet, but it is unreadable'):
    corpus_index.read_locations(tmp_path)


def test_column_is_missing(tmp_path):
  rows = {name: _ROWS[name] for name in _ROWS if name != 'num_words'}
  pq.write_table(pa.table(rows), tmp_path / 'index.parquet')
  with pytest.raises(UserError, match='index.parquet, but it is unreadable'):
    corpus_index.read_column(tmp_path, 'num_words')


@pytest.mark.parametrize('num_bytes', [0, 10, 200, -20, -1])
def test_cut_file(tmp_path, num_bytes):
  _write(tmp_path, _ROWS)
  path = tmp_path / 'index.parquet'
  path.write_bytes(path.read_bytes()[:num_bytes])
  with pytest.raises(UserError, match='index.parquet, but it is unreadable'):
    corpus_index.read_locations(tmp_path)


def test_every_flipped_bit_gives_a_corpus_or_one_line(whole, tmp_path):
  corpus = shutil.copytree(whole, tmp_path / 'corpus')
  content = (whole / 'index.parquet').read_bytes()
  found = set()
  # 41 has no divisor in common with 8: the bits of all values are among them.
  for bit in range(0, 8 * len(content), 41):
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    (corpus / 'index.parquet').write_bytes(damaged)
    try:
      GroupedCorpus(corpus).sizes('num_words')
      found.add('a corpus')
    except UserError as error:
      assert 'index.parquet' in str(error)
      assert '\n' not in str(error)
      found.add('one line')
  assert found == {'a corpus', 'one line'}


def test_numbers_of_rows_disagree(tmp_path):
  _write(tmp_path, _ROWS)
  path = tmp_path / 'index.parquet'
  content = path.read_bytes()
  size = int.from_bytes(content[-8:-4], 'little')
  found = set()
  for byte in range(len(content) - 8 - size, len(content) - 8):
    # Parquet writes 6 as 12; 13 is -7, and 14 is 7.
    for bit in (1, 2):
      damaged = bytearray(content)
      damaged[byte] ^= bit
      try:
        num_rows = pq.read_metadata(io.BytesIO(damaged)).num_rows
      except (OSError, ValueError, pa.ArrowException):
        continue
      if num_rows != 6:
        found.add(num_rows)
        path.write_bytes(damaged)
        for read in (corpus_index.read_locations, corpus_index.read_index):
          with pytest.raises(UserError, match='parquet, but it is unreadable'):
            read(tmp_path)
  assert found >= {-7, 7}


def test_sha256(tmp_path):
  _write(tmp_path, _ROWS)
  content = (tmp_path / 'index.parquet').read_bytes()
  assert (
    corpus_index.index_sha256(tmp_path) == hashlib.sha256(content).hexdigest()
  )


def test_sha256_of_nothing(tmp_path):
  with pytest.raises(FileNotFoundError):
    corpus_index.index_sha256(tmp_path)
