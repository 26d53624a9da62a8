"""Merges the index of a corpus from the parts that its shards have."""

import contextlib
import hashlib
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.rows import rows_of, to_batch
from tff_fedfish.data import places
from tff_fedfish.data.corpus_index import FINGERPRINTED, INDEX_SCHEMA

# A row group of the index; what PyArrow takes for a table of any size.
_GROUP_ROWS = 1 << 20
# Parts that are merged at a time: below what a process may have open.
_MAX_OPEN = 256
# Of all parts that are read at a time, and of what is written.
_READ_ROWS, _BATCH_ROWS = 1 << 18, 1 << 15


class MergedIndex(NamedTuple):
  """Facts of an index."""

  sha256: str
  """SHA-256 of the file."""
  fingerprint: str
  """See `corpus_index.fingerprint`."""
  num_rows: int
  num_groups: int
  num_examples: int


def merge_index(parts: Sequence[str], path: str) -> MergedIndex | None:
  """Writes an index; returns None, and writes nothing, if it would be empty.

  Args:
    parts: Parquet files of `INDEX_SCHEMA`, sorted by group and part, of which
      no two have a group in common.
    path: The index. Many parts are merged in levels, in files beside it.
  """
  while len(parts) > _MAX_OPEN:
    num = -(-len(parts) // _MAX_OPEN)
    parts = [_combine(parts[i::num], f'{path}.{num}-{i}') for i in range(num)]
  num_rows = num_groups = num_examples = 0
  fingerprint = hashlib.sha256()
  with contextlib.ExitStack() as stack:
    rows = _merge(parts, stack)
    first = next(rows, None)
    if first is None:
      return None
    rows = itertools.chain([first], rows)
    file = stack.enter_context(places.write(path))
    with pq.ParquetWriter(file, INDEX_SCHEMA) as writer:
      while group := list(_take(rows, _GROUP_ROWS)):
        for batch in group:
          ids = batch.column('group_id').filter(_is_first(batch)).to_pylist()
          fingerprint.update(
            b''.join(len(i).to_bytes(8, 'big') + i for i in ids)
          )
          num_groups += len(ids)
          num_examples += int(batch.column('num_examples').to_numpy().sum())
          num_rows += batch.num_rows
        table = pa.Table.from_batches(group).combine_chunks()
        writer.write_table(table, row_group_size=_GROUP_ROWS)
  for name in FINGERPRINTED:
    for sums in _sums(path, name):
      fingerprint.update(sums.astype('>i8'))
  with places.open_file(path) as file:
    sha256 = hashlib.file_digest(file, 'sha256').hexdigest()
  hexdigest = fingerprint.hexdigest()
  return MergedIndex(sha256, hexdigest, num_rows, num_groups, num_examples)


def _combine(parts: Sequence[str], path: str) -> str:
  """Merges parts into one; returns its path."""
  with contextlib.ExitStack() as stack:
    rows = _merge(parts, stack)
    file = stack.enter_context(places.write(path))
    with pq.ParquetWriter(file, INDEX_SCHEMA) as writer:
      for batch in _take(rows):
        writer.write_batch(batch)
  return path


def _merge(
  parts: Sequence[str], stack: contextlib.ExitStack
) -> Iterator[tuple]:
  files = [stack.enter_context(places.open_file(part)) for part in parts]
  at_once = max(1, _READ_ROWS // len(files))
  return heapq.merge(*(_rows(file, at_once) for file in files))


def _rows(file, at_once: int) -> Iterator[tuple]:
  for batch in pq.ParquetFile(file).iter_batches(at_once, use_threads=False):
    yield from rows_of(batch)


def _take(
  rows: Iterator[tuple], num: int | None = None
) -> Iterator[pa.RecordBatch]:
  """Yields the batches of the next rows; of all, without a number."""
  rows = itertools.islice(rows, num)
  while batch := list(itertools.islice(rows, _BATCH_ROWS)):
    yield to_batch(batch, INDEX_SCHEMA)


def _is_first(batch: pa.RecordBatch) -> pa.Array:
  return pa.array(batch.column('part').to_numpy() == 0)


def _sums(path: str, name: str) -> Iterator[np.ndarray]:
  """Yields a column's sums over the parts of groups, in pieces."""
  last = None
  with places.open_file(path) as file:
    table = pq.ParquetFile(file)
    for batch in table.iter_batches(_BATCH_ROWS, columns=['part', name]):
      values = batch.column(name).to_numpy()
      starts = np.flatnonzero(batch.column('part').to_numpy() == 0)
      if last is not None:
        # Parts of a group whose beginning is in an earlier batch.
        last += values[: starts[0] if len(starts) else None].sum()
      if len(starts):
        sums = np.add.reduceat(values, starts)
        if last is not None:
          yield np.array([last])
        yield sums[:-1]
        last = sums[-1]
  yield np.array([last])
