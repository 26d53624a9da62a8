"""Reads objects - names with values - from a file of any format known here.

A file holds JSON objects (one to a line, or one document for the whole file),
the rows of a Parquet table, or TFRecords of `tf.train.Example`s. Which one is
told from its first bytes, after unpacking.
"""

import codecs
import functools
import re
import tempfile
from collections.abc import Collection

from pipelines.input_files import open_stored
from pipelines.raw_bytes import copy_chunks, read_chunks, read_start
from pipelines.read_json import Objects, read_document, read_json_lines
from pipelines.read_parquet import read_rows
from pipelines.read_tfrecords import is_tfrecord, read_examples
from pipelines.source import Drop

# Escapes make a text longer than it is (\u00e9 is six bytes for two, and no
# other character that has to be escaped is frequent), and other fields stand
# beside it.
_BYTES_PER_TEXT_BYTE = 3
_OTHER_BYTES = 1 << 20

_START_BYTES = 1 << 12
_PARQUET_MAGIC = b'PAR1'

# An object that goes on in the next line, or a list of objects. Anything else
# that begins with a bracket is the first, perhaps broken, of many lines.
_DOCUMENT_START = re.compile(rb'\s*(?:\{[ \t\r]*\n\s*["}]|\[\s*[{\]])')


def read_objects(
  path: str,
  max_document_bytes: int,
  column_names: Collection[str] | None = None,
) -> Objects:
  """Yields (1-based number, object or why it is dropped) of a file.

  The number is that of the line, the row, or the object in a document. What
  precedes damage is yielded; then comes one `Drop` with `damage` set.

  Args:
    path: A local or remote path that Beam's file systems can open.
    max_document_bytes: The longest text that the caller wants. An object is
      not read, and comes as document_too_large, if it is longer than three
      times that and 1 MiB. A line or a row is not if, without escapes, it is
      longer than that and 1 MiB.
    column_names: The columns of a table that the caller looks at; None for all.
      Objects of other formats have all their names.

  Returns:
    An iterator; in its `Drop`s are, besides those of `read_chunks`, empty_line,
    invalid_utf8, malformed_json, not_an_object and malformed_example.

  Raises:
    UserError: If the file is of a known format that is not read.
    OSError: If there is no room for the temporary copy that a packed table
      needs.
  """
  # Not a generator that passes on the objects of another: that would cost time
  # for each of them.
  start, _ = read_start(read_chunks(path), _START_BYTES)
  max_bytes = max_document_bytes * _BYTES_PER_TEXT_BYTE + _OTHER_BYTES
  max_content_bytes = max_document_bytes + _OTHER_BYTES
  if start.startswith(_PARQUET_MAGIC):
    with open_stored(path) as file:
      is_packed = file.read(len(_PARQUET_MAGIC)) != _PARQUET_MAGIC
    read = _read_packed_rows if is_packed else read_rows
    return read(path, column_names, max_content_bytes)
  if is_tfrecord(start):
    return read_examples(read_chunks(path), max_bytes)
  if _DOCUMENT_START.match(start.removeprefix(codecs.BOM_UTF8)):
    return read_document(functools.partial(read_chunks, path), max_bytes)
  return read_json_lines(read_chunks(path), max_bytes, max_content_bytes)


def _read_packed_rows(
  path: str, column_names: Collection[str] | None, max_row_bytes: int
) -> Objects:
  """Yields the rows of a table that must be unpacked before it can be read."""
  with tempfile.NamedTemporaryFile(suffix='.parquet') as file:
    damage = copy_chunks(read_chunks(path), file)
    num = 0
    for num, row in read_rows(file.name, column_names, max_row_bytes):
      if isinstance(row, Drop) and row.damage:
        # That of the packed file says why, and where.
        yield num, damage or row
        return
      yield num, row
    if damage is not None:
      yield num + 1, damage
