"""Reads the rows of a Parquet table, as far as they can be read."""

import datetime
import functools
import itertools
import os
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.source import EXCERPT_BYTES, Drop
from tff_fedfish.data import places

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
_TEXT_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def read_rows(
  path: str, column_names: Collection[str] | None, max_row_bytes: int
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based row number, row by column name or why it is dropped).

  Dates and times, also those in structs, become text such as
  '2019-04-25T12:57:54Z', in UTC, with the fraction of the second where it is
  not 0. Bytes become text: invalid_utf8 where they are none. What a row lacks
  is None, and so is a value that Python cannot represent, such as a duration in
  nanoseconds.

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
  num = 0
  with places.open_file(path) as file:
    # The mark with which a Parquet file ends. It also begins with one.
    num_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(num_bytes - len(_MAGIC), len(_MAGIC)))
    reason = 'corrupt_file' if file.read() == _MAGIC else 'truncated_file'
    watched, table = _Watched(file), None
    try:
      open_table = functools.partial(
        pq.ParquetFile,
        watched,
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
        page_checksum_verification=True,
      )
      table = open_table()
      distinct_table = open_table(
        metadata=table.metadata, read_dictionary=_text_columns(table)
      )
      names = table.schema_arrow.names
      if column_names is not None:
        names = [name for name in names if name in column_names]
      for group in range(table.num_row_groups):
        watched.first = None
        has_long_values = _has_long_values(distinct_table, group, names)
        reader = distinct_table if has_long_values else table
        info = table.metadata.row_group(group)
        row_bytes = max(info.total_byte_size // max(info.num_rows, 1), 1)
        num_rows = max(min(_BYTES_PER_BATCH // row_bytes, _ROWS_PER_BATCH), 1)
        for batch in reader.iter_batches(
          num_rows, [group], columns=names, use_threads=False
        ):
          for row in _rows(batch, names, max_row_bytes):
            num += 1
            yield num, row
    except (pa.ArrowException, OSError, ValueError) as error:
      byte = watched.first or 0 if table is not None else 0
      damage = Drop(reason, damage=True, byte=byte)
      damage.__cause__ = error
      yield num + 1, damage


class _Watched:
  """A file that knows the `first` byte read of it since that was reset.

  Asking pyarrow for that place ends the process if that part of the table of
  contents is corrupt.
  """

  def __init__(self, file: BinaryIO):
    self._file = file
    self.first = None

  def read(self, num_bytes: int = -1) -> bytes:
    place = self._file.tell()
    self.first = place if self.first is None else min(self.first, place)
    return self._file.read(num_bytes)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._file, name)


def _text_columns(table: pq.ParquetFile) -> list[str]:
  columns = (table.schema.column(i) for i in range(len(table.schema.names)))
  return [
    column.path
    for column in columns
    if column.physical_type == 'BYTE_ARRAY'
    and column.logical_type.type in ('STRING', 'NONE')
  ]


def _has_long_values(
  distinct_table: pq.ParquetFile, group: int, names: Collection[str]
) -> bool:
  """Returns whether a few bytes of a row group may stand for many documents."""
  batches = distinct_table.iter_batches(
    1, [group], columns=names, use_threads=False
  )
  # The distinct values of a column come with its first row.
  return any(
    _longest_distinct_text(column) > _MAX_REPEATED_BYTES
    for batch in itertools.islice(batches, 1)
    for column in batch.columns
  )


def _rows(
  batch: pa.RecordBatch, names: Collection[str], max_row_bytes: int
) -> Iterator[dict[str, Any] | Drop]:
  # By their names once more: 'a' also selects a column that is called 'a.b'.
  batch = batch.select(
    [i for i, name in enumerate(batch.schema.names) if name in names]
  )
  sizes = _text_bytes(batch.to_struct_array())
  is_small = sizes.sum() <= _BYTES_PER_BATCH and sizes.max() <= max_row_bytes
  step = batch.num_rows if is_small else 1
  for start in range(0, batch.num_rows, step):
    rows = batch.slice(start, step)
    if sizes[start] > max_row_bytes:
      yield Drop('document_too_large', excerpt=_longest_start(rows))
      continue
    row_to_drop = {}
    columns = [_values(column, row_to_drop) for column in rows.columns]
    # A table that has none of the columns has rows all the same.
    for row, *values in zip(range(rows.num_rows), *columns, strict=True):
      yield row_to_drop.get(row) or dict(
        zip(rows.schema.names, values, strict=True)
      )


def _values(column: pa.Array, row_to_drop: dict[int, Drop]) -> list[Any]:
  try:
    column = _to_text(column)
    if '[ns' not in str(column.type):
      return column.to_pylist()
  except (ArithmeticError, LookupError, ValueError, pa.ArrowException):
    pass  # Which item cannot be represented?
  values = [None] * len(column)
  for row, item in enumerate(column):
    try:
      values[row] = _to_python(item)
    except UnicodeDecodeError as error:
      row_to_drop[row] = Drop('invalid_utf8', excerpt=error.object)
    except (ArithmeticError, LookupError, ValueError, pa.ArrowException):
      pass  # Counts as absent: no such value is a text.
  return values


def _to_text(column: pa.Array) -> pa.Array:
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  if pa.types.is_binary(column.type) or pa.types.is_binary_view(column.type):
    # Not safe: it is checked when it becomes a Python string, row by row.
    return column.cast(pa.string(), safe=False)
  if pa.types.is_large_binary(column.type):
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


def _to_python(item: pa.Scalar) -> Any:
  """Returns an item's value; raises where Python has none.

  That is `as_py` but for nanoseconds: pyarrow makes pandas' objects of them
  where pandas is installed, and a job must not depend on that. It also casts
  them only together with those of other rows.
  """
  kind = item.type
  if '[ns' not in str(kind) or not item.is_valid:  # As in 'timestamp[ns]'.
    return item.as_py()
  if pa.types.is_struct(kind):
    return {name: _to_python(value) for name, value in item.items()}
  if pa.types.is_map(kind):
    return [(_to_python(pair[0]), _to_python(pair[1])) for pair in item.values]
  if _is_list(kind):
    return list(map(_to_python, item.values))
  if pa.types.is_dictionary(kind):
    return _to_python(item.value)
  if pa.types.is_timestamp(kind):
    return item.cast(pa.timestamp('us', kind.tz)).as_py()
  is_time = pa.types.is_time64(kind)
  return item.cast(pa.time64('us') if is_time else pa.duration('us')).as_py()


def _text_bytes(array: pa.Array) -> np.ndarray:
  """Returns the bytes of text and binary data in each element.

  They are not decoded for that: where a column is kept as its distinct values
  and their positions, some bytes of a file may stand for gigabytes of text.

  Args:
    array: Elements of any type; the texts in lists and structs count, too.

  Returns:
    int64 [num_elements]; 0 where there is no text.
  """
  kind = array.type
  if pa.types.is_dictionary(kind):
    sizes = pa.array(_text_bytes(array.dictionary), pa.int64())
    return _to_numpy(sizes.take(array.indices))
  if pa.types.is_struct(kind):
    sizes = np.zeros(len(array), np.int64)
    return sum(map(_text_bytes, array.flatten()), start=sizes)
  if _is_list(kind):
    ends = np.cumsum(_to_numpy(pc.list_value_length(array)))
    totals = np.concatenate([[0], np.cumsum(_text_bytes(array.flatten()))])
    return np.diff(totals[ends], prepend=0)
  if kind in _TEXT_TYPES:
    return _to_numpy(pc.binary_length(array))
  return np.zeros(len(array), np.int64)


def _longest_distinct_text(array: pa.Array) -> int:
  """Returns the size of the longest text that is kept once for all elements."""
  if pa.types.is_dictionary(array.type):
    return int(_text_bytes(array.dictionary).max(initial=0))
  inner = []
  if pa.types.is_struct(array.type):
    inner = array.flatten()
  elif _is_list(array.type):
    inner = [array.flatten()]
  return max(map(_longest_distinct_text, inner), default=0)


def _longest_start(row: pa.RecordBatch) -> bytes:
  """Returns the beginning of a row's longest text outside lists and structs."""
  longest, start = 0, b''
  for column in row.columns:
    if pa.types.is_dictionary(column.type):
      index = column.indices[0].as_py()
      # Nothing, if there is none.
      column = column.dictionary.slice(index or 0, int(index is not None))
    size = _text_bytes(column).sum() if column.type in _TEXT_TYPES else 0
    if size > longest:
      longest = size
      data = column.cast(pa.large_binary())
      start = pc.binary_slice(data, 0, EXCERPT_BYTES)[0].as_py()
  return start


def _is_list(kind: pa.DataType) -> bool:
  return hasattr(kind, 'value_field')


def _to_numpy(sizes: pa.Array) -> np.ndarray:
  return pc.fill_null(sizes, 0).to_numpy().astype(np.int64)
