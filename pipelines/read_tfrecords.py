"""Reads TFRecords of `tf.train.Example`s from an unpacked stream.

The frames are described in tff_fedfish.data.records, which reads them from
local files, insists on whole ones, and believes their lengths. Here the bytes
come from anywhere, what precedes damage is kept, and memory is bounded.
"""

import io
from collections.abc import Iterator
from typing import Any, BinaryIO

from google.protobuf import message

from pipelines.raw_bytes import CHUNK_BYTES
from pipelines.source import EXCERPT_BYTES, Drop
from tff_fedfish.data.protos import messages
from tff_fedfish.data.records import CHECKSUM, HEADER, masked_crc


def is_tfrecord(start: bytes) -> bool:
  """Returns whether a file that starts so is one of TFRecords.

  That a file of another kind passes has the probability 1 in 4 billion.
  """
  if len(start) < HEADER.size:
    return False
  _, length_crc = HEADER.unpack_from(start)
  return masked_crc(start[:8]) == length_crc


def read_examples(
  chunks: Iterator[bytes], max_record_bytes: int
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based record number, features or why they are dropped).

  Bytes features become text. A feature of several values is a list, one of no
  value is absent.

  Args:
    chunks: The pieces of the file. If they end with a `Drop`, so does this.
    max_record_bytes: Longer records are skipped: document_too_large.

  Returns:
    An iterator; in its `Drop`s are document_too_large, malformed_example,
    invalid_utf8, and for damage truncated_file and corrupt_file. The `byte` of
    these is where the record starts in the (unpacked) file.
  """
  stream = io.BufferedReader(_Chunks(chunks), CHUNK_BYTES)
  num = 0
  while True:
    num += 1
    try:
      payload = _read_frame(stream, max_record_bytes)
      if payload is None:
        return
      value = decode_features(payload)
    except Drop as drop:
      value = drop
    yield num, value
    if isinstance(value, Drop) and value.damage:
      return


def decode_features(serialized: bytes) -> dict[str, Any]:
  """Returns the features of a serialized `tf.train.Example`, by name.

  Raises:
    Drop: malformed_example if it is none, invalid_utf8 if a feature holds bytes
      that are no text.
  """
  try:
    example = messages().Example.FromString(serialized)
    return {
      name: value
      for name, feature in example.features.feature.items()
      if (value := _value(feature)) is not None
    }
  except message.DecodeError as error:
    raise Drop('malformed_example', excerpt=serialized) from error
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8', excerpt=error.object) from error


class _Chunks(io.RawIOBase):
  """The pieces of a file, as a file that can only be read on."""

  def __init__(self, chunks: Iterator[bytes]):
    self._chunks = chunks
    self._rest = memoryview(b'')
    self._position = 0

  def readable(self) -> bool:
    return True

  def tell(self) -> int:
    return self._position

  def readinto(self, buffer: memoryview) -> int:
    if not self._rest:
      self._rest = memoryview(next(self._chunks, b''))
    num_bytes = min(len(buffer), len(self._rest))
    buffer[:num_bytes] = self._rest[:num_bytes]
    self._rest = self._rest[num_bytes:]
    self._position += num_bytes
    return num_bytes


def _read_frame(stream: BinaryIO, max_record_bytes: int) -> bytes | None:
  """Returns the next frame's payload; None at the end."""
  corrupt = Drop('corrupt_file', damage=True, byte=stream.tell())
  truncated = Drop('truncated_file', damage=True, byte=stream.tell())
  header = stream.read(HEADER.size)
  if not header:
    return None
  if len(header) < HEADER.size:
    raise truncated
  length, length_crc = HEADER.unpack(header)
  # Before `length` is believed.
  if masked_crc(header[:8]) != length_crc:
    raise corrupt
  num_bytes = length + CHECKSUM.size
  if length > max_record_bytes:
    start = stream.read(EXCERPT_BYTES)
    num_bytes -= len(start)
    while num_bytes:
      piece = stream.read(min(num_bytes, CHUNK_BYTES))
      if not piece:
        raise truncated
      num_bytes -= len(piece)
    raise Drop('document_too_large', excerpt=start)
  body = stream.read(num_bytes)
  if len(body) < num_bytes:
    raise truncated
  payload = body[:length]
  if masked_crc(payload) != CHECKSUM.unpack_from(body, length)[0]:
    raise corrupt
  return payload


def _value(feature: message.Message) -> Any:
  kind = feature.WhichOneof('kind')
  values = getattr(feature, kind).value if kind else ()
  if kind == 'bytes_list':
    values = [value.decode() for value in values]
  if len(values) == 1:
    return values[0]
  return list(values) or None
