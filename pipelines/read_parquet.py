"""Reads the rows of a Parquet table, as far as they can be read."""

import datetime
import functools
import math
import os
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.source import Drop
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

# Small, since a row may hold a document of megabytes; fewer where rows do.
_ROWS_PER_BATCH = 64
# Of a batch that becomes Python objects at once.
_BYTES_PER_BATCH = 64 << 20
# A larger row group is read in smaller batches: rows of the same length are no
# matter, but much longer ones may stand anywhere in it.
_GROUP_BYTES = 512 << 20
_BUFFER_BYTES = 1 << 20
_ISO_FORMAT = '%Y-%m-%dT%H:%M:%SZ'
# Other years have not four digits, and Arrow writes something else for most.
_FIRST_TIME = datetime.datetime(1, 1, 1)
_LAST_TIME = datetime.datetime(9999, 12, 31, 23, 59, 59)
_MAGIC = b'PAR1'
_TEXT_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def read_rows(
  path: str, max_row_bytes: int, column_names: Collection[str] | None
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based row number, row by column name or why it is dropped).

  Dates and times, also those in structs, become text such as
  '2019-04-25T12:57:54Z', in UTC, with the fraction of the second where it is
  not 0. Bytes become text: invalid_utf8 where they are none. What a row lacks
  is None, and so is a value that Python cannot represent.

  Args:
    path: A local or remote path.
    max_row_bytes: A row of more than that, and than 64 MiB, is
      document_too_large.
    column_names: The columns to read, as far as the table has them; None for
      all. No other is looked at.

  Returns:
    An iterator. If the file is damaged, its last is a `Drop` with `damage` set,
    truncated_file or corrupt_file; a row group that cannot be read ends it.

  Raises:
    UserError: If two columns have one of the names.
  """
  max_row_bytes = max(max_row_bytes, _BYTES_PER_BATCH)
  num = 0
  with places.open_file(path, _BUFFER_BYTES) as file:
    # The mark with which a Parquet file ends. It also begins with one.
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(num_bytes - len(_MAGIC), len(_MAGIC)))
    reason = 'corrupt_file' if file.read() == _MAGIC else 'truncated_file'
    try:
      for row in _read_table(file, path, column_names, max_row_bytes):
        num += 1
        yield num, row
    except (pa.ArrowException, OSError, ValueError) as error:
      damage = Drop(reason, damage=True)
      damage.__cause__ = error
      yield num + 1, damage


def _read_table(
  file: Any,
  path: str,
  column_names: Collection[str] | None,
  max_row_bytes: int,
) -> Iterator[dict[str, Any] | Drop]:
  """Yields the rows of a table, read in batches of some megabytes."""
  open_table = functools.partial(
    pq.ParquetFile,
    file,
    pre_buffer=False,
    buffer_size=_BUFFER_BYTES,
    page_checksum_verification=True,
  )
  table = open_table()
  names = table.schema_arrow.names
  if column_names is not None:
    names = [name for name in names if name in column_names]
    if twice := [name for name in names if names.count(name) > 1]:
      raise UserError(
        f'`--input` must name tables with one column {twice[0]!r}, but '
        f'{path!r} has {names.count(twice[0])}. Rename or drop all but one.'
      )
  # The same table, with texts that are stored once for many rows left so.
  distinct_table = open_table(
    metadata=table.metadata, read_dictionary=_text_columns(table)
  )
  for group in range(table.num_row_groups):
    # No more of a damaged table of contents is asked for: to look at a column's
    # part can end the process.
    info = table.metadata.row_group(group)
    num_rows, num_bytes = info.num_rows, max(info.total_byte_size, 1)
    # The size is that of all columns. A row beside others has to be looked at:
    # one may be much longer than the others.
    is_whole = len(names) == len(table.schema_arrow.names)
    if is_whole and num_rows == 1 and num_bytes > max_row_bytes:
      yield Drop('document_too_large')
      continue
    read = functools.partial(
      pq.ParquetFile.iter_batches,
      row_groups=[group],
      columns=names,
      use_threads=False,
    )
    chosen = (
      table if _has_short_texts(read(distinct_table, 1)) else distinct_table
    )
    batch_rows = min(
      _ROWS_PER_BATCH,
      _BYTES_PER_BATCH * num_rows // num_bytes,
      _ROWS_PER_BATCH * _GROUP_BYTES // num_bytes,
    )
    for batch in read(chosen, max(batch_rows, 1)):
      num_rows -= batch.num_rows
      # By their names once more: 'a' also selects a column called 'a.b'.
      batch = batch.select(
        [i for i, name in enumerate(batch.schema.names) if name in names]
      )
      yield from _rows(batch, max_row_bytes)
    if num_rows:
      # A fault in the header of a page can end a group without an error.
      raise ValueError(f'{num_rows} rows are missing')


def _has_short_texts(batches: Iterator[pa.RecordBatch]) -> bool:
  """Says whether a batch is small, whatever its rows refer to.

  The texts that are stored once all come with the first row.
  """
  first = next(batches, None)
  return first is None or all(
    _longest_text(column) * _ROWS_PER_BATCH <= _BYTES_PER_BATCH
    for column in first.columns
  )


def _text_columns(table: pq.ParquetFile) -> list[str]:
  columns = (table.schema.column(i) for i in range(len(table.schema.names)))
  return [
    column.path
    for column in columns
    if column.physical_type == 'BYTE_ARRAY'
    and column.logical_type.type in ('STRING', 'NONE')
  ]


def _longest_text(array: pa.Array) -> float:
  """Returns the size of the longest text that is stored once.

  In a list it is infinite: all texts may be the same one.
  """
  if _is_distinct(array):
    return pc.max(pc.binary_length(array.dictionary)).as_py() or 0
  longest = max(map(_longest_text, _children(array)), default=-math.inf)
  is_list = longest >= 0 and not pa.types.is_struct(array.type)
  return math.inf if is_list else longest


def _decoded_bytes(array: pa.Array) -> int:
  """Returns the size of an array in which every text stands where it is."""
  if _is_distinct(array):
    lengths = pc.binary_length(array.dictionary)
    return pc.sum(lengths.take(array.indices)).as_py() or 0
  if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
    # One row counts what all share.
    array = array.cast(pa.large_string(), safe=False)
  children = _children(array)
  return sum(map(_decoded_bytes, children)) if children else array.nbytes


def _is_distinct(array: pa.Array) -> bool:
  is_dictionary = pa.types.is_dictionary(array.type)
  return is_dictionary and array.dictionary.type in _TEXT_TYPES


def _children(array: pa.Array) -> list[pa.Array]:
  """Returns the arrays of which one of structs, lists or maps is made."""
  kind = array.type
  if pa.types.is_struct(kind):
    return array.flatten()
  if pa.types.is_map(kind):
    start, end = (array.offsets[i].as_py() for i in (0, -1))
    return [
      child.slice(start, end - start) for child in (array.keys, array.items)
    ]
  return [array.flatten()] if hasattr(kind, 'value_field') else []


def _rows(
  batch: pa.RecordBatch, max_row_bytes: int
) -> Iterator[dict[str, Any] | Drop]:
  # All at a time, if they are small.
  is_small = sum(map(_decoded_bytes, batch.columns)) <= _BYTES_PER_BATCH
  step = max(batch.num_rows, 1) if is_small else 1
  for start in range(0, batch.num_rows, step):
    rows = batch.slice(start, step)
    if not is_small and (
      sum(map(_decoded_bytes, rows.columns)) > max_row_bytes
    ):
      yield Drop('document_too_large')
      continue
    row_to_drop = {}
    columns = [_values(column, 0, row_to_drop) for column in rows.columns]
    # A table that has none of the columns has rows all the same.
    for row, *values in zip(range(rows.num_rows), *columns, strict=True):
      yield row_to_drop.get(row) or dict(
        zip(rows.schema.names, values, strict=True)
      )


def _values(
  column: pa.Array, first_row: int, row_to_drop: dict[int, Drop]
) -> list[Any]:
  """Returns a column's values; notes the rows that it makes unusable."""
  try:
    return _to_text(column).to_pylist()
  except (ArithmeticError, LookupError, ValueError, pa.ArrowException) as error:
    if len(column) > 1:
      # Which of them is it?
      return [
        _values(column.slice(row, 1), first_row + row, row_to_drop)[0]
        for row in range(len(column))
      ]
    if isinstance(error, UnicodeDecodeError):
      row_to_drop[first_row] = Drop('invalid_utf8', excerpt=error.object)
    # Else it counts as absent: no such value is a text.
    return [None]


def _to_text(column: pa.Array) -> pa.Array:
  """Returns bytes and times as text, and other columns as they are."""
  kind = column.type
  if pa.types.is_dictionary(kind):
    return _to_text(column.dictionary_decode())
  # Not safe: it is checked when it becomes a Python string, row by row.
  if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
    return column.cast(pa.string(), safe=False)
  if pa.types.is_large_binary(kind):
    return column.cast(pa.large_string(), safe=False)
  return _with_times_as_text(column)


def _with_times_as_text(column: pa.Array) -> pa.Array:
  kind = column.type
  if pa.types.is_timestamp(kind):
    # Without its zone the time is in UTC, and needs no tables of time zones.
    return _times_to_text(column.cast(pa.timestamp(kind.unit)))
  if pa.types.is_date(kind):
    return _times_to_text(column.cast(pa.timestamp('s'), safe=False))
  if pa.types.is_struct(kind) and kind.num_fields:
    return pa.StructArray.from_arrays(
      list(map(_with_times_as_text, column.flatten())),
      [field.name for field in kind],
      mask=column.is_null(),
    )
  return column


def _times_to_text(times: pa.Array) -> pa.Array:
  """Returns times in ISO 8601, with their fractions where these are not 0."""
  # Towards 1970, so that no value is out of range.
  seconds = times.cast(pa.timestamp('s'), safe=False)
  is_whole = pc.equal(seconds.cast(times.type), times)
  first, last = (
    pa.scalar(time, seconds.type) for time in (_FIRST_TIME, _LAST_TIME)
  )
  is_time = pc.and_(
    pc.or_(
      pc.greater(seconds, first), pc.and_(pc.equal(seconds, first), is_whole)
    ),
    pc.less_equal(seconds, last),
  )

  def to_text(array):
    array = pc.if_else(is_time, array, pa.scalar(None, array.type))
    return pc.strftime(array, format=_ISO_FORMAT)

  text = to_text(seconds)
  if not pc.all(is_whole).as_py():
    # Arrow prints all digits of a time's unit, also zeros.
    text = pc.if_else(is_whole, text, to_text(times))
  return text
