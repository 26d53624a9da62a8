"""The index of a grouped corpus: place and size of every record.

The readers take a directory that `fedfish group` wrote. They raise a UserError
if its index is missing or is no such table.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tff_fedfish.data import places
from tff_fedfish.data.client_ids import ClientIds
from tff_fedfish.data.manifest import ADVICE
from tff_fedfish.errors import UserError

INDEX_NAME = 'index.parquet'
_GROUPS_AT_ONCE = 1 << 16

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


def shard_of(group_id: bytes, num_shards: int) -> int:
  """Returns the number of the shard that holds a group."""
  digest = hashlib.sha256(group_id).digest()
  return int.from_bytes(digest, 'big') % num_shards


def fingerprint(client_ids: ClientIds, sizes: Iterable[np.ndarray]) -> str:
  """Returns the SHA-256 of every group's id, examples and words.

  Each id follows its length, 8 bytes big-endian. The hash does not depend on
  the number of shards, nor on where the corpus lies.

  Args:
    client_ids: The groups.
    sizes: Those of `FINGERPRINTED`, int64 [num_groups] each.
  """
  hasher = hashlib.sha256()
  starts = range(0, len(client_ids), _GROUPS_AT_ONCE)
  for start in starts:
    few = client_ids[start : start + _GROUPS_AT_ONCE]
    hasher.update(b''.join(len(i).to_bytes(8, 'big') + i for i in few))
  for values in sizes:
    for start in starts:
      hasher.update(values[start : start + _GROUPS_AT_ONCE].astype('>i8'))
    # Before the next array is read.
    del values
  return hasher.hexdigest()


def fingerprint_of_index(index: pa.Table) -> str:
  """Returns the `fingerprint` of a whole index, a table of `INDEX_SCHEMA`."""
  first_rows = np.flatnonzero(index.column('part').to_numpy() == 0)
  sizes = (
    np.add.reduceat(index.column(name).to_numpy(), first_rows)
    for name in FINGERPRINTED
  )
  return fingerprint(ClientIds(_groups(index).chunks), sizes)


def read_locations(directory: str | os.PathLike) -> RecordLocations:
  """Reads what is needed to find records; takes about 40 bytes for each."""
  client_ids = read_client_ids(directory)
  is_first = read_column(directory, 'part') == 0
  num_rows = len(is_first)
  limits = np.append(np.flatnonzero(is_first), num_rows)
  locations = RecordLocations(
    client_ids,
    limits.astype(np.int32 if num_rows < 1 << 31 else np.int64),
    read_column(directory, 'shard', num_rows),
    read_column(directory, 'offset', num_rows),
  )
  # Arrow keeps what it needed for reading, for more of the like.
  pa.default_memory_pool().release_unused()
  return locations


def read_client_ids(directory: str | os.PathLike) -> ClientIds:
  """Reads the ids of all clients, and nothing else."""
  return ClientIds(
    ids
    for table in _read(directory, ('group_id', 'part'))
    for ids in _groups(table).chunks
  )


def read_column(
  directory: str | os.PathLike, name: str, num_rows: int | None = None
) -> np.ndarray:
  """Reads a column of numbers of an index.

  Args:
    directory: The corpus.
    name: Name of the column, such as 'num_words'.
    num_rows: Number of rows that the index had when it was opened.

  Returns:
    int32 or int64 [num_rows], as the column is.
  """
  dtype = INDEX_SCHEMA.field(name).type.to_pandas_dtype()
  # Grows in place; all columns beside their sum would take twice the memory.
  buffer = bytearray()
  for table in _read(directory, (name,)):
    buffer += table.column(name).to_numpy().data
  values = np.frombuffer(buffer, dtype)
  if num_rows not in (None, len(values)):
    raise UserError(
      f'{str(directory)!r} must stay as it is while it is open, but '
      f'{INDEX_NAME} was replaced by another one. Start again.'
    )
  return values


def index_sha256(directory: str | os.PathLike) -> str:
  """Returns the SHA-256 of the index as it lies on the disk, in hexadecimal."""
  try:
    with places.open_file(places.join(directory, INDEX_NAME)) as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()
  except OSError as error:
    raise _unreadable(directory) from error


def _groups(index: pa.Table) -> pa.ChunkedArray:
  """Returns the ids of all groups, each once."""
  is_first = pa.array(index.column('part').to_numpy() == 0)
  return index.column('group_id').filter(is_first)


def _read(
  directory: str | os.PathLike, names: Sequence[str]
) -> Iterator[pa.Table]:
  """Yields the columns of one row group after the other.

  Arrow's own copies stay small that way.
  """
  schema = pa.schema([INDEX_SCHEMA.field(name) for name in names])
  try:
    with (
      places.open_file(places.join(directory, INDEX_NAME)) as source,
      pq.ParquetFile(source) as file,
    ):
      for i in range(file.num_row_groups):
        table = file.read_row_group(i, columns=schema.names)
        table = table.select(schema.names).cast(schema)
        if any(column.null_count for column in table.columns):
          raise ValueError('a value is missing')
        yield table
  except (OSError, KeyError, ValueError, pa.ArrowException) as error:
    raise _unreadable(directory) from error


def _unreadable(directory: str | os.PathLike) -> UserError:
  """Returns the error of an index that is missing or damaged."""
  is_missing = places.size(places.join(directory, INDEX_NAME)) is None
  return UserError(
    f'{str(directory)!r} must hold {INDEX_NAME}, but it is '
    f'{"missing" if is_missing else "unreadable"}. {ADVICE}'
  )
