"""Reads the rows of a Parquet table, as far as they can be read."""

import datetime
import itertools
import os
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import numpy as np

from pipelines import text_sizes
from pipelines.read_lines import EXCERPT_BYTES
from pipelines.source import Drop
from pipelines.stored_files import open_stored

# Small, since a row may hold a document of megabytes; fewer where rows do.
_ROWS_PER_BATCH = 64
_BYTES_PER_BATCH = 64 << 20
# Of the distinct values of a column. Values longer than this stay distinct as
# they are read, which takes more time: each can stand in any number of rows.
_MAX_REPEATED_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_ISO_FORMAT = '%Y-%m-%dT%H:%M:%SZ'
# Other years have not four digits, and Arrow writes something else for most.
_FIRST_TIME = datetime.datetime(1, 1, 1)
_LAST_TIME = datetime.datetime(9999, 12, 31, 23, 59, 59)
_MAGIC = b'PAR1'


def read_rows(
  path: str, column_names: Collection[str] | None, max_row_bytes: int
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based row number, row by column name or why it is dropped).

  Dates and times become text such as '2019-04-25T12:57:54Z', in UTC, without
  fractions of a second. Bytes become text: invalid_utf8 where they are none.
  What a row lacks is None, and so is a value that Python cannot represent, such
  as a duration in nanoseconds.

  Args:
    path: A local or remote path that Beam's file systems can open.
    column_names: The columns to read, as far as the table has them; None for
      all. No other is looked at.
    max_row_bytes: A row whose texts in these columns are longer together, in
      UTF-8, is not decoded: document_too_large.

  Returns:
    An iterator. If the file is damaged, its last is a `Drop` with `damage` set,
    truncated_file or corrupt_file. Its `byte` is where the row group starts
    that cannot be read on; 0 where not even the table of contents can be read,
    which is at the end of the file.
  """
  import pyarrow as pa

  num = 0
  with open_stored(path) as file:
    reason = 'truncated_file' if _lacks_end(file) else 'corrupt_file'
    watched, table = _Watched(file), None
    try:
      table = _open(watched)
      distinct_table = _open(
        watched, metadata=table.metadata, read_dictionary=_text_columns(table)
      )
      names = table.schema_arrow.names
      if column_names is not None:
        names = [name for name in names if name in column_names]
      for group in range(table.num_row_groups):
        watched.forget()
        has_long_values = _has_long_values(distinct_table, group, names)
        reader = distinct_table if has_long_values else table
        num_rows = _rows_per_batch(table, group)
        for batch in reader.iter_batches(
          num_rows, [group], columns=names, use_threads=False
        ):
          for row in _rows(batch, names, max_row_bytes):
            num += 1
            yield num, row
    except (pa.ArrowException, OSError, ValueError) as error:
      byte = watched.first if table is not None else 0
      damage = Drop(reason, damage=True, byte=byte)
      damage.__cause__ = error
      yield num + 1, damage


class _Watched:
  """A file that knows the first byte read of it since it was told to forget.

  Asking pyarrow for that place ends the process if that part of the table of
  contents is corrupt.
  """

  def __init__(self, file: BinaryIO):
    self._file = file
    self.forget()

  def forget(self) -> None:
    self._first = None

  @property
  def first(self) -> int:
    return self._first or 0

  def read(self, num_bytes: int = -1) -> bytes:
    place = self._file.tell()
    self._first = place if self._first is None else min(self._first, place)
    return self._file.read(num_bytes)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._file, name)


def _open(file: _Watched, **options: Any) -> Any:
  import pyarrow.parquet as pq

  return pq.ParquetFile(
    file,
    pre_buffer=False,
    buffer_size=_BUFFER_BYTES,
    page_checksum_verification=True,
    **options,
  )


def _text_columns(table: Any) -> list[str]:
  columns = (table.schema.column(i) for i in range(len(table.schema.names)))
  return [
    column.path
    for column in columns
    if column.physical_type == 'BYTE_ARRAY'
    and column.logical_type.type in ('STRING', 'NONE')
  ]


def _has_long_values(
  distinct_table: Any, group: int, names: Collection[str]
) -> bool:
  """Returns whether a few bytes of a row group may stand for many documents."""
  batches = distinct_table.iter_batches(
    1, [group], columns=names, use_threads=False
  )
  # The distinct values of a column come with its first row.
  return any(
    longest > _MAX_REPEATED_BYTES
    for batch in itertools.islice(batches, 1)
    for longest in map(text_sizes.longest_distinct_text, batch.columns)
  )


def _rows_per_batch(table: Any, group: int) -> int:
  info = table.metadata.row_group(group)
  row_bytes = max(info.total_byte_size, 1) // max(info.num_rows, 1)
  return max(min(_BYTES_PER_BATCH // max(row_bytes, 1), _ROWS_PER_BATCH), 1)


def _rows(
  batch: Any, names: Collection[str], max_row_bytes: int
) -> Iterator[dict[str, Any] | Drop]:
  # By their names once more: 'a' also selects a column that is called 'a.b'.
  batch = batch.select(
    [i for i, name in enumerate(batch.schema.names) if name in names]
  )
  sizes = sum(
    map(text_sizes.text_bytes, batch.columns),
    start=np.zeros(batch.num_rows, np.int64),
  )
  is_small = sizes.sum() <= _BYTES_PER_BATCH and sizes.max() <= max_row_bytes
  step = batch.num_rows if is_small else 1
  for start in range(0, batch.num_rows, step):
    if sizes[start] > max_row_bytes:
      excerpt = text_sizes.longest_start(batch.slice(start, 1), EXCERPT_BYTES)
      yield Drop('document_too_large', excerpt=excerpt)
    else:
      yield from _decode(batch.slice(start, step))


def _decode(batch: Any) -> list[dict[str, Any] | Drop]:
  names = batch.schema.names
  row_to_drop = {}
  columns = [_values(column, row_to_drop) for column in batch.columns]
  # A table that has none of the columns has rows all the same.
  return [
    row_to_drop.get(row) or dict(zip(names, values, strict=True))
    for row, *values in zip(range(batch.num_rows), *columns, strict=True)
  ]


def _values(column: Any, row_to_drop: dict[int, Drop]) -> list[Any]:
  import pyarrow as pa

  try:
    column = _to_text(column)
    return column.to_pylist()
  except (ArithmeticError, LookupError, ValueError, pa.ArrowException):
    return [_value(item, row, row_to_drop) for row, item in enumerate(column)]


def _value(item: Any, row: int, row_to_drop: dict[int, Drop]) -> Any:
  import pyarrow as pa

  try:
    return _cast_nanoseconds(item).as_py()
  except UnicodeDecodeError as error:
    excerpt = error.object[:EXCERPT_BYTES]
    row_to_drop[row] = Drop('invalid_utf8', excerpt=excerpt)
  except (ArithmeticError, LookupError, ValueError, pa.ArrowException):
    pass  # Counts as absent: no such value is a text.
  return None


def _to_text(column: Any) -> Any:
  import pyarrow as pa
  import pyarrow.compute as pc

  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  # First without its zone, which leaves the time in UTC, and needs no tables of
  # time zones; then without fractions, which would be printed.
  if pa.types.is_timestamp(column.type):
    column = column.cast(pa.timestamp(column.type.unit))
  if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
    column = column.cast(pa.timestamp('s'), safe=False)
    is_time = pc.and_(
      pc.greater_equal(column, pa.scalar(_FIRST_TIME, column.type)),
      pc.less_equal(column, pa.scalar(_LAST_TIME, column.type)),
    )
    column = pc.if_else(is_time, column, pa.scalar(None, column.type))
    return pc.strftime(column, format=_ISO_FORMAT)
  if pa.types.is_binary(column.type) or pa.types.is_binary_view(column.type):
    # Not safe: it is checked when it becomes a Python string, row by row.
    return column.cast(pa.string(), safe=False)
  if pa.types.is_large_binary(column.type):
    return column.cast(pa.large_string(), safe=False)
  return _cast_nanoseconds(column)


def _cast_nanoseconds(values: Any) -> Any:
  """Casts to microseconds, which Python has; without loss, or it raises.

  Nanoseconds become pandas objects where pandas is installed, and errors where
  it is not: a job must not depend on that.
  """
  value_type = _in_microseconds(values.type)
  return values if value_type == values.type else values.cast(value_type)


def _in_microseconds(value_type: Any) -> Any:
  import pyarrow as pa

  if pa.types.is_time64(value_type):
    return pa.time64('us')
  if pa.types.is_duration(value_type) and value_type.unit == 'ns':
    return pa.duration('us')
  if pa.types.is_timestamp(value_type) and value_type.unit == 'ns':
    return pa.timestamp('us', value_type.tz)
  if pa.types.is_struct(value_type):
    return pa.struct(
      [f.with_type(_in_microseconds(f.type)) for f in value_type]
    )
  if pa.types.is_list(value_type) or pa.types.is_large_list(value_type):
    list_of = pa.list_ if pa.types.is_list(value_type) else pa.large_list
    return list_of(_in_microseconds(value_type.value_type))
  return value_type


def _lacks_end(file: Any) -> bool:
  """Returns whether the mark is missing with which a Parquet file ends."""
  # It also begins with one.
  if file.seek(0, os.SEEK_END) < 2 * len(_MAGIC):
    return True
  file.seek(-len(_MAGIC), os.SEEK_END)
  return file.read() != _MAGIC
