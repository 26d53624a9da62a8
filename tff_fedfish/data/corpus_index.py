"""The index of a grouped corpus: where each group's records are, how large.

The readers take a directory that `fedfish group` wrote. They raise a UserError
if its index is missing or is no such table.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tff_fedfish import files
from tff_fedfish.data.client_ids import ClientIds
from tff_fedfish.errors import UserError

INDEX_NAME = 'index.parquet'
_ROWS_AT_ONCE = 1 << 16

# One row per stored record, sorted by (group_id, part). `offset` is the first
# byte of its frame in the shard, `num_bytes` the length of its payload.
INDEX_SCHEMA = pa.schema(
  {
    'group_id': pa.binary(),
    'part': pa.int32(),
    'shard': pa.int32(),
    'offset': pa.int64(),
    'num_examples': pa.int64(),
    'num_bytes': pa.int64(),
    'num_words': pa.int64(),
  }
)


FINGERPRINTED = ('num_examples', 'num_words')
"""The sizes that `fingerprint` covers, in its order."""


class RecordLocations(NamedTuple):
  """Places of every client's records.

  Attributes:
    client_ids: All client ids, sorted.
    row_limits: int32 or, of very many rows, int64 [num_clients + 1]. The rows
      of client `i` are `row_limits[i]` to `row_limits[i + 1] - 1`.
    shards: int32 [num_rows], the 0-based number of each record's shard.
    offsets: int64 [num_rows], where in the shard the record's frame begins.
  """

  client_ids: ClientIds
  row_limits: np.ndarray
  shards: np.ndarray
  offsets: np.ndarray


def fingerprint(client_ids: ClientIds, sizes: Iterable[np.ndarray]) -> str:
  """Returns the SHA-256 of every group's id, examples and words.

  It does not depend on the number of shards, nor on where the corpus lies.

  Args:
    client_ids: The groups.
    sizes: Those of `FINGERPRINTED`, int64 [num_groups] each.
  """
  hasher = hashlib.sha256()
  client_ids.add_to_hash(hasher)
  for values in sizes:
    for start in range(0, len(values), _ROWS_AT_ONCE):
      hasher.update(values[start : start + _ROWS_AT_ONCE].astype('>i8'))
  return hasher.hexdigest()


def fingerprint_of_index(index: pa.Table) -> str:
  """Returns the `fingerprint` of a whole index, a table of `INDEX_SCHEMA`."""
  is_first = index.column('part').to_numpy() == 0
  groups = index.column('group_id')
  if not is_first.all():
    groups = groups.filter(pa.array(is_first))
  first_rows = np.flatnonzero(is_first)
  return fingerprint(
    ClientIds(groups),
    (
      sums_of_groups(index.column(name).to_numpy(), first_rows)
      for name in FINGERPRINTED
    ),
  )


def sums_of_groups(values: np.ndarray, first_rows: np.ndarray) -> np.ndarray:
  """Returns a size of groups from that of rows; of single rows the same array.

  Args:
    values: int64 [num_rows].
    first_rows: Each group's first row, integers [num_groups], ascending from 0.
  """
  if len(first_rows) == len(values):
    return values
  return np.add.reduceat(values, first_rows)


def shard_of(group_id: bytes, num_shards: int) -> int:
  """Returns the number of the shard that holds a group."""
  digest = hashlib.sha256(group_id).digest()
  return int.from_bytes(digest, 'big') % num_shards


def read_locations(directory: str | os.PathLike) -> RecordLocations:
  """Reads what is needed to find records; takes about 35 bytes for each."""
  num_rows, tables = _open(directory, ('group_id', 'part', 'shard', 'offset'))
  row_type = np.int32 if num_rows < 1 << 31 else np.int64
  shards = np.empty(num_rows, np.int32)
  offsets = np.empty(num_rows, np.int64)
  ids, first_rows = [], []
  start = 0
  for table in tables:
    stop = start + table.num_rows
    shards[start:stop] = table.column('shard').to_numpy()
    offsets[start:stop] = table.column('offset').to_numpy()
    # A group is its part 0 and the rows up to the next one.
    is_first = table.column('part').to_numpy() == 0
    first_rows.append((start + np.flatnonzero(is_first)).astype(row_type))
    groups = table.column('group_id')
    if not is_first.all():
      groups = groups.filter(pa.array(is_first))
    ids += groups.chunks
    start = stop
  first_rows.append(np.array([num_rows], row_type))
  locations = RecordLocations(
    client_ids=ClientIds(pa.chunked_array(ids, pa.binary())),
    row_limits=np.concatenate(first_rows),
    shards=shards,
    offsets=offsets,
  )
  # Arrow keeps what it needed for reading, for more of the like.
  pa.default_memory_pool().release_unused()
  return locations


def read_column(directory: str | os.PathLike, name: str) -> np.ndarray:
  """Reads one of the sizes in the index.

  Args:
    directory: The corpus.
    name: 'num_examples', 'num_bytes' or 'num_words'.

  Returns:
    int64 [num_rows].
  """
  num_rows, tables = _open(directory, (name,))
  values = np.empty(num_rows, np.int64)
  start = 0
  for table in tables:
    values[start : start + table.num_rows] = table.column(name).to_numpy()
    start += table.num_rows
  return values


def read_index(directory: str | os.PathLike) -> pa.Table:
  """Reads the whole index, a table of `INDEX_SCHEMA`.

  Takes several times the memory of what is needed to find records.
  """
  _, tables = _open(directory, INDEX_SCHEMA.names)
  return pa.concat_tables([INDEX_SCHEMA.empty_table(), *tables])


def index_sha256(directory: str | os.PathLike) -> str:
  """Returns the SHA-256 of the index as it lies on the disk, in hexadecimal.

  Raises:
    OSError: If it cannot be read, though it could be opened before.
  """
  return files.sha256_of(pathlib.Path(directory) / INDEX_NAME)


def _open(
  directory: str | os.PathLike, names: Sequence[str]
) -> tuple[int, Iterator[pa.Table]]:
  """Returns the number of rows, and the columns by groups of rows."""
  path = pathlib.Path(directory) / INDEX_NAME
  try:
    file = pq.ParquetFile(path)
  except (OSError, ValueError, pa.ArrowException) as error:
    raise unreadable(path) from error
  num_rows = file.metadata.num_rows
  # Arrays are made for the one number and filled by the others.
  if num_rows != sum(_group_sizes(file)):
    file.close()
    raise unreadable(path)
  schema = pa.schema([INDEX_SCHEMA.field(name) for name in names])
  return num_rows, _read(file, schema, path)


def _group_sizes(file: pq.ParquetFile) -> list[int]:
  """Returns how many rows each group of rows is said to have."""
  return [
    file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)
  ]


def _read(
  file: pq.ParquetFile, schema: pa.Schema, path: pathlib.Path
) -> Iterator[pa.Table]:
  # A group of rows, not all, so that Arrow's own copies stay small.
  with file:
    for i, num_rows in enumerate(_group_sizes(file)):
      try:
        table = file.read_row_group(i, columns=schema.names)
        table = table.select(schema.names).cast(schema)
      except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise unreadable(path) from error
      has_null = any(column.null_count for column in table.columns)
      if table.num_rows != num_rows or has_null:
        raise unreadable(path)
      yield table


def unreadable(path: pathlib.Path) -> UserError:
  """Returns the error of an index that is missing or damaged."""
  problem = 'unreadable' if path.exists() else 'missing'
  return UserError(
    f'{str(path.parent)!r} must hold {INDEX_NAME}, but it is {problem}. Copy '
    'the directory again, or run `fedfish group` again.'
  )
