"""Rows: keyed records on their way from raw files to shards."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tff_fedfish.data import records

ROW_SCHEMA = pa.schema(
  {
    'group_id': pa.binary(),
    # Its key, then the timestamp itself: see `time_order`.
    'time': pa.binary(),
    'url': pa.binary(),
    # Of the serialized example.
    'sha256': pa.binary(),
    'example': pa.binary(),
    'num_words': pa.int64(),
    # Bit i: whether the example has optional feature i of its source.
    'features': pa.int32(),
  }
)
"""Columns of rows, in the order by which they are sorted."""

Row = tuple[bytes, bytes, bytes, bytes, bytes, int, int]
"""The values of a record, in the order of `ROW_SCHEMA`."""

# What Python adds to the bytes of a row.
_OVERHEAD_BYTES = 400


def size_of(row: Row) -> int:
  """Returns how many bytes a row takes in memory, roughly."""
  return len(row[0]) + len(row[1]) + len(row[2]) + len(row[4]) + _OVERHEAD_BYTES


def mask_of(names: Iterable[str], all_names: Sequence[str]) -> int:
  """Returns a number whose bit i says whether name i is among the names."""
  return sum(1 << all_names.index(name) for name in names)


def names_of(mask: int, all_names: Sequence[str]) -> tuple[str, ...]:
  """Returns the names whose bits are set."""
  return tuple(name for bit, name in enumerate(all_names) if mask >> bit & 1)


def to_batch(rows: Iterable[tuple], schema: pa.Schema) -> pa.RecordBatch:
  """Returns rows, at least one, as columns."""
  columns = zip(*rows, strict=True)
  arrays = list(map(pa.array, columns, schema.types))
  return pa.record_batch(arrays, schema=schema)


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple]:
  """Returns the rows of a batch."""
  return zip(*(column.to_pylist() for column in batch.columns), strict=True)


class FeatureFiller:
  """Adds empty values to examples that were encoded before a feature was met.

  Readers work on their own, so one may have met fewer optional features than
  another. Few examples are concerned where a corpus is of one kind.

  Attributes:
    mask: The optional features that all examples shall have, as bits.
  """

  def __init__(
    self, required: Sequence[str], optional: Sequence[str], mask: int
  ):
    """Takes the features of a source, and those that the corpus stores."""
    self.mask = mask
    self._names = (*required, *names_of(mask, optional))
    self._encode = records.example_encoder(self._names)

  def __call__(self, row: Row) -> Row:
    """Returns the row with all features; its place in the order may change."""
    if row[6] == self.mask:
      return row
    values = records.decode_example(row[4])
    example = self._encode([values.get(name, b'') for name in self._names])
    digest = hashlib.sha256(example).digest()
    return *row[:3], digest, example, row[5], self.mask
