"""Reads objects - names with values - from a file of any format known here.

A file holds JSON objects (one to a line, or one document for the whole file),
the rows of a Parquet table, or TFRecords of `tf.train.Example`s. Which one is
told from its first bytes, after unpacking.

The frames of TFRecords are described in tff_fedfish.data.records, which reads
them from local files, insists on whole ones, and believes their lengths. Here
the bytes come from anywhere, what precedes damage is kept, and memory is
bounded.
"""

import codecs
import functools
import io
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from google.protobuf import message

from pipelines.raw_bytes import CHUNK_BYTES, read_chunks, read_start
from pipelines.read_json import Objects, read_document, read_json_lines
from pipelines.read_parquet import read_rows
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, parse_each
from tff_fedfish.data import places
from tff_fedfish.data.protos import messages
from tff_fedfish.data.records import CHECKSUM, HEADER, masked_crc
from tff_fedfish.errors import UserError

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
  """
  # Not a generator that passes on the objects of another: that would cost time
  # for each of them.
  start, _ = read_start(read_chunks(path), _START_BYTES)
  max_bytes = max_document_bytes * _BYTES_PER_TEXT_BYTE + _OTHER_BYTES
  max_content_bytes = max_document_bytes + _OTHER_BYTES
  if start.startswith(_PARQUET_MAGIC):
    with places.open_file(path) as file:
      if file.read(len(_PARQUET_MAGIC)) != _PARQUET_MAGIC:
        raise UserError(
          f'`--input` must name Parquet files as they are, but {path!r} is a '
          'packed one. Unpack it.'
        )
    return read_rows(path, column_names, max_content_bytes)
  if is_tfrecord(start):
    return read_examples(read_chunks(path), max_bytes)
  if _DOCUMENT_START.match(start.removeprefix(codecs.BOM_UTF8)):
    return read_document(functools.partial(read_chunks, path), max_bytes)
  return read_json_lines(read_chunks(path), max_bytes, max_content_bytes)


def record_reader(
  parse: Callable[[dict[str, Any], int], RawRecord],
  column_names: Collection[str],
) -> Callable[[str, int], Iterator[tuple[int, RawRecord | Drop]]]:
  """Returns a `Source.read_records` for files of objects.

  Args:
    parse: Called with each object and `max_document_bytes`; may raise `Drop`.
    column_names: What it looks at; see `read_objects`.
  """

  def read(path: str, max_document_bytes: int):
    return parse_each(
      lambda value: parse(value, max_document_bytes),
      read_objects(path, max_document_bytes, column_names),
    )

  return read


def is_tfrecord(start: bytes) -> bool:
  """Returns whether a file that starts so is one of TFRecords.

  That a file of another kind passes has the probability 1 in 4 billion.
  """
  if len(start) < HEADER.size:
    return False
  _, length_crc = HEADER.unpack_from(start)
  return masked_crc(start[:8]) == length_crc


def read_examples(chunks: Iterator[bytes], max_record_bytes: int) -> Objects:
  """Yields (1-based record number, features or why they are dropped).

  Bytes features become text. A feature of several values is a list, one of no
  value is absent. If the pieces of the file end with a `Drop`, so does this.

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
