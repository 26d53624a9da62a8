"""Blocks: records of one shard that travel together, as one string of bytes.

A runner's cost is per element, so records travel by the thousand: columns in
Arrow's stream format, compressed with Zstandard, which cuts what runners hold
in memory and send over networks to less than half.
"""

import pyarrow as pa

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
KEY_COLUMNS = ('group_id', 'timestamp', 'url', 'sha256')
"""Records sort by these into the stored order."""


class BlockBuilder:
  """Collects records for one block."""

  def __init__(self):
    self._rows = []
    self.append = self._rows.append
    """Adds a record: a tuple of values in the order of the schema."""

  def build(self) -> bytes:
    """Returns the block."""
    columns = zip(*self._rows, strict=True)
    return encode_block(
      pa.record_batch(
        [
          pa.array(column, field.type)
          for column, field in zip(columns, _SCHEMA, strict=True)
        ],
        schema=_SCHEMA,
      )
    )


def encode_block(batch: pa.RecordBatch) -> bytes:
  """Returns the block of some records."""
  sink = pa.BufferOutputStream()
  options = pa.ipc.IpcWriteOptions(
    compression=pa.Codec('zstd', compression_level=1), use_threads=False
  )
  with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
    writer.write_batch(batch)
  return sink.getvalue().to_pybytes()


def decode_block(block: bytes) -> pa.RecordBatch:
  """Returns the records of a block."""
  options = pa.ipc.IpcReadOptions(use_threads=False)
  with pa.ipc.open_stream(block, options=options) as reader:
    return reader.read_next_batch()
