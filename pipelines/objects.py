"""Reads objects - names with values - from a file of any format known here.

A file holds JSON objects (one to a line, or one document for the whole file),
the rows of a Parquet table, or TFRecords of `tf.train.Example`s. Its first
bytes, after unpacking, tell which.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from google.protobuf import message

from pipelines.open_raw import START_BYTES, open_raw
from pipelines.read_parquet import read_rows
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, parse_each
from tff_fedfish.data import records
from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

Objects = Iterator[tuple[int, dict[str, Any] | Drop]]
"""(1-based number, object or why it is dropped)."""

# Escapes make a text longer than it is (\u00e9 is six bytes for two, and no
# other character that has to be escaped is frequent).
_BYTES_PER_TEXT_BYTE = 3
# What may stand beside a text.
_OTHER_FIELDS_BYTES = 1 << 20
_SKIPPED_BYTES = 1 << 20
# A document is in memory as bytes, and as text of up to 4 bytes a character.
_MAX_DOCUMENT_BYTES = 1 << 29

# An object that goes on in the next line, or a list of objects. Anything else
# that begins with a bracket is the first, perhaps broken, of many lines.
_DOCUMENT_START = re.compile(rb'\s*(?:\{[ \t\r]*\n\s*["}]|\[\s*[{\]])')
_BYTE_ORDER_MARKS = re.compile(b'(?:%b)+' % codecs.BOM_UTF8)
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SPACES = re.compile(r'[ \t\r\n]*')

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
    max_document_bytes: The longest text that the caller wants. A line is
      document_too_large if it is longer than three times that and 1 MiB or,
      without its escapes, than that and 1 MiB.
    column_names: The columns of a table that the caller looks at; None for all.
      Objects of other formats have all their names.

  Returns:
    An iterator; in its `Drop`s are, besides those of `open_raw`, empty_line,
    invalid_utf8, malformed_json, not_an_object and malformed_example.

  Raises:
    UserError: If the file is of a known format that is not read.
  """
  limits = (
    max_document_bytes * _BYTES_PER_TEXT_BYTE + _OTHER_FIELDS_BYTES,
    max_document_bytes + _OTHER_FIELDS_BYTES,
  )
  num = 0
  try:
    with open_raw(path) as stream:
      start = stream.peek()
      if start.startswith(b'PAR1'):
        objects = read_rows(path, column_names)
      elif records.starts_with_frame(start):
        objects = _read_examples(stream, limits[0])
      elif start.startswith(_UTF16):
        raise UserError(
          f'`--input` must name files in UTF-8, but {path!r} is UTF-16. Save '
          'it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`.'
        )
      elif _DOCUMENT_START.match(start.removeprefix(codecs.BOM_UTF8)):
        objects = _read_document(stream, path, limits)
      else:
        objects = parse_each(parse_line, read_lines(stream, *limits))
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
  stream: BinaryIO, max_bytes: int, max_content_bytes: int | None = None
) -> Iterator[tuple[int, bytes | Drop]]:
  r"""Yields (1-based number, line with its end), the only line reader.

  Args:
    stream: A raw file, as `open_raw` returns it. Its damage is passed on.
    max_bytes: How long a line may be. Of a longer one, which comes as the
      `Drop` document_too_large, no more is ever in memory.
    max_content_bytes: How long it may be where each of JSON's escapes, such as
      \u0041, counts as one byte; None: as `max_bytes`.
  """
  max_content_bytes = max_content_bytes or max_bytes
  num = 0
  while line := stream.readline(max_bytes + 1):
    num += 1
    if len(line) > max_content_bytes and _is_too_long(
      line, max_bytes, max_content_bytes
    ):
      is_whole = line.endswith(b'\n')
      line = Drop('document_too_large', excerpt=line)
      while not is_whole and (piece := stream.readline(_SKIPPED_BYTES)):
        is_whole = piece.endswith(b'\n')
    yield num, line


def parse_line(line: bytes) -> dict[str, Any]:
  """Returns the object that a line of JSON holds.

  A byte order mark, with which some editors begin a file, is left out.

  Raises:
    Drop: empty_line, invalid_utf8, malformed_json or not_an_object.
  """
  try:
    # As json.loads, which takes longer to pass over white space around.
    text = line.decode().strip(' \t\r\n')
    value, end = _raw_decode(text)
    if end != len(text):
      raise ValueError('something follows the object')
  except (ValueError, RecursionError) as error:
    if marks := _BYTE_ORDER_MARKS.match(line):
      return parse_line(line[marks.end() :])
    if not line.strip():
      raise Drop('empty_line') from error
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


def _is_too_long(line: bytes, max_bytes: int, max_content_bytes: int) -> bool:
  num_bytes = len(line) - line.endswith(b'\n')
  # \\n is two bytes for one, \\u000a six.
  num_extra_bytes = line.count(b'\\') + 4 * line.count(b'\\u')
  return (
    num_bytes > max_bytes or num_bytes - num_extra_bytes > max_content_bytes
  )


def _read_document(
  stream: BinaryIO, path: str, limits: tuple[int, int]
) -> Objects:
  """Yields the object, or those of the array, that a file holds.

  A fault ends an array. Where nothing precedes it, but a line of the file is an
  object, only the first line is broken: the file is read as lines.
  """
  data, damage = bytearray(), None
  try:
    while len(data) <= _MAX_DOCUMENT_BYTES and (
      piece := stream.read(START_BYTES)
    ):
      data += piece
  except Drop as drop:
    damage = drop
  try:
    text = data.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    text = data[: error.start].decode('utf-8-sig')
    excerpt = bytes(data[error.start :][:EXCERPT_BYTES])
    damage = damage or Drop('invalid_utf8', damage=True, excerpt=excerpt)
  num = 0
  try:
    if len(data) > _MAX_DOCUMENT_BYTES:
      raise ValueError('too large')
    for num, value in enumerate(_values(text), start=1):
      yield num, value if isinstance(value, dict) else _not_an_object(value)
  except (ValueError, RecursionError) as error:
    if not num and any(map(_is_object, data[:START_BYTES].split(b'\n'))):
      with open_raw(path) as lines:
        yield from parse_each(parse_line, read_lines(lines, *limits))
      return
    if len(data) > _MAX_DOCUMENT_BYTES:
      raise UserError(
        '`--input` must hold JSON documents of at most '
        f'{_MAX_DOCUMENT_BYTES >> 20} MiB, but {path!r} is larger. Write an '
        "object to a line, for example with `jq -c '.[]'`."
      ) from error
    # What ends the file counts for more than what is wrong before that.
    excerpt = bytes(data[:EXCERPT_BYTES])
    damage = damage or Drop('malformed_json', damage=True, excerpt=excerpt)
  if damage is not None:
    yield num + 1, damage


def _values(text: str) -> Iterator[Any]:
  """Yields the elements of an array, or the only value; raises at a fault."""

  def skip(position):
    return _SPACES.match(text, position).end()

  position = skip(0)
  if not text.startswith('[', position):
    yield json.loads(text)
    return
  position = skip(position + 1)
  is_open = not text.startswith(']', position)
  if not is_open:
    position = skip(position + 1)
  while is_open:
    value, position = _raw_decode(text, position)
    position = skip(position)
    is_open = text.startswith(',', position)
    if not (is_open or text.startswith(']', position)):
      raise ValueError('neither comma nor bracket')
    position = skip(position + 1)
    if is_open or position == len(text):
      yield value
  if position < len(text):
    raise ValueError('something follows the array')


def _not_an_object(value: Any) -> Drop:
  return Drop('not_an_object', excerpt=json.dumps(value).encode())


def _is_object(line: bytes) -> bool:
  try:
    return bool(parse_line(line))
  except Drop:
    return False


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
