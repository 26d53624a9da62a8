"""Blocks: records of one shard that travel together, as one string of bytes.

A runner's cost is per element, so records travel by the thousand: columns in
Arrow's stream format, compressed with Zstandard, which cuts what runners hold
in memory and send over networks to less than half. Whoever writes the shard
unpacks all of its blocks and sorts their records.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.source import Source
from tff_fedfish.data import records

_SCHEMA = pa.schema(
  {
    'group_id': pa.binary(),
    'timestamp': pa.binary(),
    'url': pa.binary(),
    # Of the serialized example.
    'sha256': pa.binary(),
    'example': pa.binary(),
    'num_words': pa.int64(),
    # Bit i: whether the example has optional feature i of its source.
    'features': pa.int32(),
  }
)
# Records sort by these into the stored order.
_KEY_COLUMNS = ('group_id', 'timestamp', 'url', 'sha256')


def encode_block(rows: Sequence[tuple]) -> bytes:
  """Returns a block of records, each a tuple of values as in the schema."""
  columns = zip(*rows, strict=True)
  batch = pa.record_batch(
    [
      pa.array(column, field.type)
      for column, field in zip(columns, _SCHEMA, strict=True)
    ],
    schema=_SCHEMA,
  )
  sink = pa.BufferOutputStream()
  options = pa.ipc.IpcWriteOptions(
    compression=pa.Codec('zstd', compression_level=1), use_threads=False
  )
  with pa.ipc.new_stream(sink, _SCHEMA, options=options) as writer:
    writer.write_batch(batch)
  return sink.getvalue().to_pybytes()


def decode_block(block: bytes) -> pa.RecordBatch:
  """Returns the records of a block."""
  options = pa.ipc.IpcReadOptions(use_threads=False)
  with pa.ipc.open_stream(block, options=options) as reader:
    return reader.read_next_batch()


class SortedRecords:
  """The records of some blocks, sorted.

  Holds the serialized examples once, as they came out of the blocks, and sorts
  positions. A record is known by its place in the sorted order.

  Attributes:
    num_words: int64 [num_records], in sorted order.
    sizes: int64 [num_records], bytes of the serialized examples.
    optional_features: Those of the source's that are stored.
  """

  def __init__(
    self,
    blocks: Iterable[bytes],
    source: Source,
    optional_features: Sequence[str],
  ):
    """Unpacks and sorts blocks, given in any order, of records of a source."""
    self.optional_features = optional_features
    feature_names = (*source.feature_names, *optional_features)
    mask = sum(
      1 << bit
      for bit, name in enumerate(source.optional_feature_names)
      if name in optional_features
    )
    batches = [
      _with_features(decode_block(block), feature_names, mask)
      for block in blocks
    ]
    if not batches:
      self.sizes = self.num_words = self._starts = np.zeros(0, np.int64)
      self._group_starts = np.zeros(1, np.int64)
      return
    keys = pa.Table.from_batches(batches).select(_KEY_COLUMNS)
    order = pc.sort_indices(
      keys, sort_keys=[(name, 'ascending') for name in _KEY_COLUMNS]
    ).to_numpy()
    self._ids, self._sha256 = (
      keys.column(name).combine_chunks().take(pa.array(order))
      for name in ('group_id', 'sha256')
    )
    columns = [_limits(batch.column('example')) for batch in batches]
    self._data = [data for data, _, _ in columns]
    starts, ends = (
      np.concatenate([column[i] for column in columns])[order] for i in (1, 2)
    )
    self._starts, self.sizes = starts, ends - starts
    self._blocks = np.repeat(
      np.arange(len(batches), dtype=np.int32),
      [batch.num_rows for batch in batches],
    )[order]
    self.num_words = np.concatenate(
      [batch.column('num_words').to_numpy() for batch in batches]
    )[order]
    changes = pc.not_equal(self._ids[1:], self._ids[:-1])
    self._group_starts = np.concatenate(
      [[0], 1 + np.flatnonzero(changes), [len(order)]]
    )

  def groups(self) -> Iterator[tuple[bytes, range]]:
    """Yields (group id, its records), sorted by group id."""
    starts = self._group_starts.tolist()
    for start, end in zip(starts, starts[1:], strict=False):
      yield self._ids[start].as_py(), range(start, end)

  def examples(self, positions: Sequence[int]) -> list[bytes]:
    """Returns the serialized examples of some records."""
    return [
      bytes(self._data[block][start : start + size])
      for block, start, size in zip(
        self._blocks[positions].tolist(),
        self._starts[positions].tolist(),
        self.sizes[positions].tolist(),
        strict=True,
      )
    ]

  def sha256(self, position: int) -> bytes:
    """Returns the SHA-256 of a record's serialized example."""
    return self._sha256[position].as_py()


def _limits(
  column: pa.BinaryArray,
) -> tuple[memoryview, np.ndarray, np.ndarray]:
  """Returns the data, and the first and last + 1 byte of every value."""
  _, offsets, data = column.buffers()
  limits = np.frombuffer(offsets, np.int32)[
    column.offset : column.offset + len(column) + 1
  ].astype(np.int64)
  return memoryview(data or b''), limits[:-1], limits[1:]


def _with_features(
  batch: pa.RecordBatch, feature_names: Sequence[str], mask: int
) -> pa.RecordBatch:
  """Adds empty values to examples that were encoded before a feature was met.

  Readers work on their own, so one may have met fewer optional features than
  another. Few examples are concerned where a corpus is of one kind.
  """
  masks = batch.column('features')
  rows = np.flatnonzero(masks.to_numpy() != mask)
  if not len(rows):
    return batch
  encode = records.example_encoder(feature_names)
  examples, sha256 = (
    batch.column(name).to_pylist() for name in ('example', 'sha256')
  )
  for row in rows.tolist():
    values = records.decode_example(examples[row])
    example = encode([values.get(name, b'') for name in feature_names])
    examples[row] = example
    sha256[row] = hashlib.sha256(example).digest()
  for name, values in (('example', examples), ('sha256', sha256)):
    index, field = _SCHEMA.get_field_index(name), _SCHEMA.field(name)
    batch = batch.set_column(index, field, pa.array(values, pa.binary()))
  return batch
