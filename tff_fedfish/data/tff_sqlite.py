"""Reads the SQLite databases in which TFF publishes datasets by client.

Their table `examples` has a row per example: `split_name`, `client_id` and
`serialized_example_proto`, a `tf.train.Example`
(tensorflow_federated/python/simulation/datasets/sql_client_data.py).
"""

import contextlib
import os
import sqlite3
import sys
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

from tff_fedfish.errors import UserError

MAGIC = b'SQLite format 3\0'
"""The first bytes of a database."""

# In the order in which they were written. A longer example is not even read.
_SELECT = """
SELECT CAST(split_name AS TEXT), CAST(client_id AS TEXT),
  length(serialized_example_proto),
  CASE WHEN length(serialized_example_proto) <= ?
  THEN serialized_example_proto END
FROM examples WHERE ? IN (split_name, '') ORDER BY rowid
"""
_HEADER_BYTES = 100


class Row(NamedTuple):
  """One example."""

  split_name: bytes | None
  client_id: bytes | None
  num_bytes: int | None
  """Length of the serialized example."""
  serialized: bytes | None
  """None: it is longer than was asked for, or missing."""


def read_rows(
  path: str | os.PathLike,
  *,
  split_name: str = '',
  max_example_bytes: int = sys.maxsize,
) -> Iterator[Row]:
  """Yields the rows of a database, in the order in which they were written.

  Args:
    path: A local file, which is only read.
    split_name: The split to read; '' for all.
    max_example_bytes: A longer serialized example is not read.

  Raises:
    UserError: If the file is cut off or damaged, or no database of TFF.
  """
  _check_size(path)
  try:
    # Immutable: no locks and no files beside it, perhaps a read-only place.
    name = urllib.parse.quote(os.path.abspath(path))
    with contextlib.closing(
      sqlite3.connect(
        f'file:{name}?mode=ro&immutable=1', uri=True, check_same_thread=False
      )
    ) as connection:
      connection.text_factory = bytes
      values = max_example_bytes, split_name
      yield from map(Row._make, connection.execute(_SELECT, values))
  except sqlite3.Error as error:
    raise UserError(
      f'{str(path)!r} must be a database with the table `examples` of TFF, '
      f'but it cannot be read as one ({error}). Get it again, or check which '
      'file it is.'
    ) from error


def _check_size(path: str | os.PathLike) -> None:
  """Refuses a file that was cut off: SQLite fills up a page with zeros."""
  # https://www.sqlite.org/fileformat.html#the_database_header
  with open(path, 'rb') as file:
    header = file.read(_HEADER_BYTES)
  # 65,536 does not fit.
  page_bytes = int.from_bytes(header[16:18], 'big')
  page_bytes = page_bytes if page_bytes > 1 else 1 << 16
  # The number of pages is valid only if the last writer knew of that field.
  is_valid = header[24:28] == header[92:96]
  num_pages = int.from_bytes(header[28:32], 'big') if is_valid else 1
  wanted, size = num_pages * page_bytes, os.path.getsize(path)
  if header.startswith(MAGIC) and size < wanted:
    raise UserError(
      f'{str(path)!r} must have the {wanted:,} bytes that its header names, '
      f'found {size:,}. Get it again.'
    )
