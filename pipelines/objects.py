"""Reads objects - names with values - from a file of any format known here.

A file holds JSON objects (one to a line, or one document for the whole file),
the rows of a Parquet table, or TFRecords of `tf.train.Example`s. Its first
bytes, after unpacking, tell which.
"""

import codecs
import io
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from google.protobuf import message

from pipelines.open_raw import open_raw
from pipelines.read_parquet import read_rows
from pipelines.source import Drop, RawRecord, parse_each
from tff_fedfish.data import records
from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

Objects = Iterator[tuple[int, dict[str, Any] | Drop]]
"""(1-based number, object or why it is dropped)."""

# Escapes make a text longer than it is (\u00e9 is six bytes for two, and no
# other character that has to be escaped is frequent); other fields stand beside
# it.
_BYTES_PER_TEXT_BYTE = 3
_OTHER_FIELDS_BYTES = 1 << 20
_SKIPPED_BYTES = 1 << 20
_MAX_DOCUMENT_BYTES = 1 << 29

# An object that goes on in the next line, or a list of objects. Anything else
# that begins with a bracket is the first, perhaps broken, of many lines.
_DOCUMENT_START = re.compile(rb'\s*(?:\{[ \t\r]*\n\s*["}]|\[\s*[{\]])')
# A byte order mark, with which some editors begin a file, and white space.
_BEFORE_OBJECT = re.compile(rb'(?:%b|\s)+' % codecs.BOM_UTF8)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_raw_decode = json.JSONDecoder().raw_decode


def read_objects(
  path: str,
  max_document_bytes: int,
  column_names: Collection[str] | None = None,
) -> Objects:
  """Yields (1-based number, object or why it is dropped) of a file.

  The number is that of the line, the row, or the object in a document. What
  precedes damage is yielded; then comes one `Drop` with `damage` set.

  Args:
    path: A local or remote path.
    max_document_bytes: The longest text that the caller wants. A line or a
      record of more than three times that and 1 MiB is document_too_large.
    column_names: The columns of a table that the caller looks at; None for all.
      Objects of other formats have all their names.

  Returns:
    An iterator; in its `Drop`s are, besides those of `open_raw`, empty_line,
    invalid_utf8, malformed_json, not_an_object and malformed_example.

  Raises:
    UserError: If the file is of a known format that is not read.
  """
  max_bytes = max_document_bytes * _BYTES_PER_TEXT_BYTE + _OTHER_FIELDS_BYTES
  num = 0
  try:
    with open_raw(path) as stream:
      start = stream.peek()
      if start.startswith(b'PAR1'):
        objects = read_rows(path, column_names)
      elif records.starts_with_frame(start):
        objects = _read_examples(stream, max_bytes)
      elif start.startswith(_UTF16):
        raise UserError(
          f'`--input` must name files in UTF-8, but {path!r} is UTF-16. Save '
          'it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`.'
        )
      elif _DOCUMENT_START.match(start.removeprefix(codecs.BOM_UTF8)):
        objects = _read_document(stream, path, max_bytes)
      else:
        objects = parse_each(parse_line, read_lines(stream, max_bytes))
      for num, value in objects:
        yield num, value
  except Drop as damage:
    yield num + 1, damage


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


def read_lines(
  stream: BinaryIO, max_bytes: int
) -> Iterator[tuple[int, bytes | Drop]]:
  """Yields (1-based number, line with its end) of a raw file.

  A line of more than `max_bytes`, of which no more is ever in memory, comes as
  the `Drop` document_too_large. The file's damage is passed on.
  """
  num = 0
  while line := stream.readline(max_bytes + 1):
    num += 1
    if len(line) > max_bytes and not line.endswith(b'\n'):
      line = Drop('document_too_large', excerpt=line)
      while piece := stream.readline(_SKIPPED_BYTES):
        if piece.endswith(b'\n'):
          break
    yield num, line


def parse_line(line: bytes) -> dict[str, Any]:
  """Returns the object that a line of JSON holds.

  Raises:
    Drop: empty_line, invalid_utf8, malformed_json or not_an_object.
  """
  try:
    text = line.decode()
    value, end = _raw_decode(text)
    # A copy without its end would cost time.
    if text[end:].strip(' \t\r\n'):
      raise ValueError('something follows the object')
  except (ValueError, RecursionError) as error:
    before = _BEFORE_OBJECT.match(line)
    if not line or (before and before.end() == len(line)):
      raise Drop('empty_line') from error
    if before:
      return parse_line(line[before.end() :])
    is_text = not isinstance(error, UnicodeDecodeError)
    reason = 'malformed_json' if is_text else 'invalid_utf8'
    raise Drop(reason, excerpt=line) from error
  if not isinstance(value, dict):
    raise Drop('not_an_object', excerpt=line)
  return value


def decode_features(serialized: bytes) -> dict[str, Any]:
  """Returns the features of a serialized `tf.train.Example`, by name.

  Bytes become text. A feature of several values is a list, one of no value is
  absent.

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


def _read_document(stream: BinaryIO, path: str, max_bytes: int) -> Objects:
  """Yields the object, or those of the array, that a file holds."""
  data = stream.read(_MAX_DOCUMENT_BYTES + 1)
  if len(data) > _MAX_DOCUMENT_BYTES:
    raise UserError(
      '`--input` must hold JSON documents of at most '
      f'{_MAX_DOCUMENT_BYTES >> 20} MiB, but {path!r} is larger. Write an '
      "object to a line, for example with `jq -c '.[]'`."
    )
  try:
    values = json.loads(data)
  except (ValueError, RecursionError) as error:

    def lines():
      return parse_each(parse_line, read_lines(io.BytesIO(data), max_bytes))

    # Only its first line is broken, or each is an array.
    if any(
      isinstance(value, dict) or (num, value.reason) == (1, 'not_an_object')
      for num, value in lines()
    ):
      yield from lines()
      return
    raise Drop('malformed_json', damage=True, excerpt=data) from error
  values = values if isinstance(values, list) else [values]
  for num, value in enumerate(values, start=1):
    if not isinstance(value, dict):
      value = Drop('not_an_object', excerpt=json.dumps(value).encode())
    yield num, value


def _read_examples(stream: BinaryIO, max_bytes: int) -> Objects:
  """Yields (1-based number, features or why they are dropped) of TFRecords."""
  num = 0
  try:
    for _, num_bytes, payload in records.read_frames(stream, max_bytes):
      num += 1
      try:
        if num_bytes > len(payload):
          raise Drop('document_too_large', excerpt=payload)
        value = decode_features(payload)
      except Drop as drop:
        value = drop
      yield num, value
  except records.BrokenFrame as broken:
    reason = 'truncated_file' if broken.is_cut_off else 'corrupt_file'
    yield num + 1, Drop(reason, damage=True, byte=broken.offset)


def _value(feature: message.Message) -> Any:
  kind = feature.WhichOneof('kind')
  values = getattr(feature, kind).value if kind else ()
  if kind == 'bytes_list':
    values = [value.decode() for value in values]
  if len(values) == 1:
    return values[0]
  return list(values) or None
