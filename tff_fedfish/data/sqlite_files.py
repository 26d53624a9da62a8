"""Sizes of SQLite databases, in which TFF publishes its datasets.

SQLite itself reads a file that was cut off, with zeros for a part of a page
(https://www.sqlite.org/fileformat.html#the_database_header).
"""

import os

MAGIC = b'SQLite format 3\0'

_HEADER_BYTES = 100


def read_sizes(path: str | os.PathLike) -> tuple[int, int]:
  """Returns the bytes of a page and of the whole file, as its header says."""
  with open(path, 'rb') as file:
    header = file.read(_HEADER_BYTES)
  if len(header) < _HEADER_BYTES:
    return _HEADER_BYTES, _HEADER_BYTES
  # 65,536 does not fit.
  page_bytes = int.from_bytes(header[16:18], 'big')
  page_bytes = page_bytes if page_bytes > 1 else 1 << 16
  # The number of pages is valid only if the last writer knew of that field.
  is_valid = header[24:28] == header[92:96]
  num_pages = int.from_bytes(header[28:32], 'big') if is_valid else 1
  return page_bytes, num_pages * page_bytes


def is_database(path: str | os.PathLike) -> bool:
  """Says whether a file begins as a SQLite database does."""
  with open(path, 'rb') as file:
    return file.read(len(MAGIC)) == MAGIC


def is_cut_off(path: str | os.PathLike) -> bool:
  """Says whether the end of a database is missing."""
  return os.path.getsize(path) < read_sizes(path)[1]
