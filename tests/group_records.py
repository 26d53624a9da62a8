"""Records that tests write and read as Protocol Buffers hold them."""

import io
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

from tff_fedfish.data import records


def encode_example(features: Mapping[str, bytes]) -> bytes:
  """Returns a serialized `tf.train.Example` of one bytes value per feature."""
  return records.example_encoder(tuple(features))(tuple(features.values()))


def read_group_records(
  path: str | os.PathLike,
) -> Iterator[records.GroupRecord]:
  """Yields the groups of our shards, and of those of Dataset Grouper."""
  with open(path, 'rb') as file:
    for _, payload in records.iterate_records(file, path):
      yield records.decode_group_record(payload)


def write_record(file: BinaryIO, payload: bytes) -> int:
  """Writes one frame and returns its length in bytes, frame included."""
  length = struct.pack('<Q', len(payload))
  for data in (length, payload):
    file.write(data + struct.pack('<I', records.masked_crc(data)))
  return records.frame_size(len(payload))


def encode_group_record(
  group_id: bytes, examples: Sequence[bytes], part: int | None = None
) -> bytes:
  """Returns the payload that `records.write_group_record` writes."""
  entries = b''.join(map(records.example_entry, examples))
  file = io.BytesIO()
  size = records.write_group_record(
    file, group_id, io.BytesIO(entries), len(entries), part
  )
  return file.getvalue()[12 : 12 + size]
