"""The index of a grouped corpus: where each group's records are, how large."""

import os
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

from tff_fedfish.errors import UserError

INDEX_NAME = 'index.parquet'

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


def read_index(directory: str | os.PathLike) -> pa.Table:
  """Reads the index of a grouped corpus.

  Args:
    directory: A directory that `fedfish group` wrote.

  Returns:
    A table of `INDEX_SCHEMA`.

  Raises:
    UserError: If the index is missing or is no such table.
  """
  path = pathlib.Path(directory) / INDEX_NAME
  try:
    return pq.read_table(path).select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA)
  except (OSError, KeyError, ValueError) as error:
    problem = 'unreadable' if path.exists() else 'missing'
    raise UserError(
      f'{str(directory)!r} must hold {INDEX_NAME}, but it is {problem}. Copy '
      'the directory again, or run `fedfish group` again.'
    ) from error
