"""The index of a corpus is that of a whole table, whatever its size."""

import hashlib
import os
import random
import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import merge_index
from tff_fedfish.data.corpus_index import INDEX_SCHEMA, fingerprint_of_index


@pytest.mark.parametrize('max_open', [2, 256])
@pytest.mark.parametrize(
  'group_rows, batch_rows', [(1 << 20, 1 << 15), (64, 4), (64, 64)]
)
def test_like_the_index_as_one_table(
  tmp_path, monkeypatch, group_rows, batch_rows, max_open
):
  monkeypatch.setattr(merge_index, '_MAX_OPEN', max_open)
  monkeypatch.setattr(merge_index, '_GROUP_ROWS', group_rows)
  monkeypatch.setattr(merge_index, '_BATCH_ROWS', batch_rows)
  monkeypatch.setattr(merge_index, '_READ_ROWS', 12)
  generator = random.Random(1)
  parts = [[] for _ in range(3)]
  for number in range(200):
    shard = generator.randrange(3)
    # Groups of one record, and of more than a batch.
    for part in range(generator.choice([1, 1, 1, 2, 9])):
      sizes = [generator.randrange(1, 99) for _ in range(4)]
      parts[shard].append((b'g%03d' % number, part, shard, *sizes))
  tables = [
    pa.table(
      dict(zip(INDEX_SCHEMA.names, zip(*part, strict=True), strict=True)),
      schema=INDEX_SCHEMA,
    )
    for part in [*parts]
  ]
  # A shard may have no group.
  tables.append(INDEX_SCHEMA.empty_table())
  paths = [str(tmp_path / f'{n}') for n in range(len(tables))]
  for path, table in zip(paths, tables, strict=True):
    pq.write_table(table, path)
  found = merge_index.merge_index(paths, str(tmp_path / 'index'))
  whole = pa.concat_tables(tables).sort_by(
    [('group_id', 'ascending'), ('part', 'ascending')]
  )
  pq.write_table(whole, tmp_path / 'whole', row_group_size=group_rows)
  data = (tmp_path / 'index').read_bytes()
  assert data == (tmp_path / 'whole').read_bytes()
  assert found == (
    *(hashlib.sha256(data).hexdigest(), fingerprint_of_index(whole)),
    *(whole.num_rows, 200, sum(whole.column('num_examples').to_pylist())),
  )


def test_more_parts_than_a_process_may_have_open(tmp_path):
  paths = [str(tmp_path / f'{n}') for n in range(400)]
  for n, path in enumerate(paths):
    values = [[b'g%03d' % n], *([1] for _ in INDEX_SCHEMA.names[1:])]
    columns = dict(zip(INDEX_SCHEMA.names, values, strict=True))
    columns['part'] = [0]
    pq.write_table(pa.table(columns, schema=INDEX_SCHEMA), path)
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  num_open = len(os.listdir('/proc/self/fd'))
  resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 300, hard))
  try:
    found = merge_index.merge_index(paths, str(tmp_path / 'index'))
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
  assert found.num_groups == 400


def test_no_group(tmp_path):
  path = str(tmp_path / 'part')
  pq.write_table(INDEX_SCHEMA.empty_table(), path)
  assert merge_index.merge_index([path], str(tmp_path / 'index')) is None
  assert [p.name for p in tmp_path.iterdir()] == ['part']
