"""Blocks: records of one piece of a shard that travel as one string of bytes.

A runner's cost is per element, so records travel by the thousand: columns in
Arrow's stream format, compressed with Zstandard, which cuts what runners hold
in memory and send over networks to less than half. Whoever writes the piece
unpacks all of its blocks and sorts their records.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.source import Source
from tff_fedfish.data import records

SORTED_SCHEMA = pa.schema(
  {
    'group_id': pa.binary(),
    # Its key, then the timestamp itself: see `time_order`.
    'time': pa.binary(),
    'url': pa.binary(),
    # Of the serialized example.
    'sha256': pa.binary(),
    'example': pa.binary(),
    'num_words': pa.int64(),
  }
)
"""Sorted records. They sort by the first four columns."""
_SORT_KEYS = [(name, 'ascending') for name in SORTED_SCHEMA.names[:4]]
# Bit i: whether the example has optional feature i of its source.
_BLOCK_SCHEMA = SORTED_SCHEMA.append(pa.field('features', pa.int32()))

SortedRecord = tuple[bytes, bytes, bytes, bytes, bytes, int]
"""The values of a record, in the order of `SORTED_SCHEMA`."""


def encode_block(rows: Sequence[tuple]) -> bytes:
  """Returns a block of records, each a tuple as `PieceBlocks.add` takes."""
  columns = map(pa.array, zip(*rows, strict=True), _BLOCK_SCHEMA.types)
  sink = pa.BufferOutputStream()
  with new_stream(sink, _BLOCK_SCHEMA) as writer:
    writer.write_batch(pa.record_batch(list(columns), schema=_BLOCK_SCHEMA))
  return sink.getvalue().to_pybytes()


def decode_block(block: bytes) -> pa.RecordBatch:
  """Returns the records of a block."""
  options = pa.ipc.IpcReadOptions(use_threads=False)
  with pa.ipc.open_stream(block, options=options) as reader:
    return reader.read_next_batch()


def sort_blocks(
  blocks: Iterable[bytes], source: Source, optional_features: Sequence[str]
) -> pa.Table:
  """Unpacks blocks and sorts their records into the stored order.

  Args:
    blocks: At least one, in any order.
    source: Where the records come from.
    optional_features: Those of the source's that the corpus stores.

  Returns:
    A table of `SORTED_SCHEMA`; examples hold all features.
  """
  feature_names = (*source.feature_names, *optional_features)
  mask = mask_of(optional_features, source.optional_feature_names)
  table = pa.Table.from_batches(
    [
      _with_features(decode_block(block), feature_names, mask)
      for block in blocks
    ]
  ).select(SORTED_SCHEMA.names)
  order = pc.sort_indices(table, sort_keys=_SORT_KEYS)
  return table.combine_chunks().take(order)


def mask_of(names: Iterable[str], all_names: Sequence[str]) -> int:
  """Returns a number whose bit i says whether name i is among the names."""
  return sum(1 << all_names.index(name) for name in names)


def names_of(mask: int, all_names: Sequence[str]) -> tuple[str, ...]:
  """Returns the names whose bits are set."""
  return tuple(name for bit, name in enumerate(all_names) if mask >> bit & 1)


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
    examples[row] = encode([values.get(name, b'') for name in feature_names])
    sha256[row] = hashlib.sha256(examples[row]).digest()
  for name, values in (('example', examples), ('sha256', sha256)):
    index = batch.schema.get_field_index(name)
    batch = batch.set_column(index, name, pa.array(values, pa.binary()))
  return batch


def new_stream(sink: Any, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
  """Returns a writer of batches, compressed in one thread."""
  options = pa.ipc.IpcWriteOptions(
    compression=pa.Codec('zstd', compression_level=1), use_threads=False
  )
  return pa.ipc.new_stream(sink, schema, options=options)
