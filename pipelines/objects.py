"""Reads objects - names with values - from a file of any format known here.

A file holds JSON objects (one to a line, or one document for the whole file),
the rows of a Parquet table, or TFRecords of `tf.train.Example`s. Its first
bytes, after unpacking, tell which.
"""

import codecs
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from pipelines.open_raw import open_raw
from pipelines.read_examples import read_examples
from pipelines.read_parquet import read_rows
from pipelines.source import EXCERPT_BYTES, Drop, RawRecord, parse_each
from tff_fedfish.data import records
from tff_fedfish.errors import UserError

Objects = Iterator[tuple[int, dict[str, Any] | Drop]]
"""(1-based number, object or why it is dropped)."""

# Escapes make a text longer than it is (\u00e9 is six bytes for two, and no
# other character that has to be escaped is frequent); other fields stand beside
# it.
_BYTES_PER_TEXT_BYTE = 3
_OTHER_FIELDS_BYTES = 1 << 20
_LINE_PIECE_BYTES = 1 << 20
_MAX_DOCUMENT_BYTES = 1 << 29
# What is looked at of a file that is no document as a whole.
_MAX_LINES = 1000

# An object that goes on in the next line, or a list of objects. Anything else
# that begins with a bracket is the first, perhaps broken, of many lines.
_DOCUMENT_START = re.compile(rb'\s*(?:\{[ \t\r]*\n\s*["}]|\[\s*[{\]])')
# With the byte order mark, with which some editors begin a file.
_BEFORE_OBJECT = '\ufeff \t\r\n\v\f'
_SPACES = re.compile(r'[ \t\r\n]*')
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
    max_document_bytes: The longest text that the caller wants. A line, record
      or row of more than three times that and 1 MiB is document_too_large.
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
        objects = read_rows(path, max_bytes, column_names)
      elif records.starts_with_frame(start):
        objects = read_examples(stream, max_bytes)
      elif start.startswith(_UTF16):
        raise UserError(
          f'`--input` must name files in UTF-8, but {path!r} is UTF-16. Save '
          'it as UTF-8, for example with `iconv -f UTF-16 -t UTF-8`.'
        )
      elif _DOCUMENT_START.match(start.removeprefix(codecs.BOM_UTF8)):
        objects = _read_document(stream, path, max_bytes)
      else:
        objects = _read_json_lines(stream, max_bytes)
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

  A line of more than `max_bytes`, which are at least 1 MiB, comes as the `Drop`
  document_too_large; no more of it is in memory. The file's damage is passed
  on.
  """
  num = 0
  while line := stream.readline(_LINE_PIECE_BYTES):
    num += 1
    if len(line) == _LINE_PIECE_BYTES:
      line = _read_on(stream, line, max_bytes)
    yield num, line


def _read_on(stream: BinaryIO, piece: bytes, max_bytes: int) -> bytes | Drop:
  """Returns the line that begins with a piece."""
  # Grows in one place: joining its pieces would hold it twice.
  line, is_too_long = bytearray(piece), False
  while not piece.endswith(b'\n'):
    if not (piece := stream.readline(_LINE_PIECE_BYTES)):
      break
    if not is_too_long:
      line += piece
    if len(line) - piece.endswith(b'\n') > max_bytes:
      del line[EXCERPT_BYTES:]
      is_too_long = True
  data = bytes(line)
  return Drop('document_too_large', excerpt=data) if is_too_long else data


def parse_line(line: bytes) -> dict[str, Any]:
  """Returns the object that a line of JSON holds.

  Raises:
    Drop: empty_line, invalid_utf8, malformed_json or not_an_object.
  """
  try:
    text = line.decode().lstrip(_BEFORE_OBJECT)
    value, end = _raw_decode(text)
    # A copy without its end would cost time.
    if text[end:].strip(' \t\r\n'):
      raise ValueError('something follows the object')
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8', excerpt=line) from error
  except (ValueError, RecursionError) as error:
    if not text:
      raise Drop('empty_line') from error
    raise Drop('malformed_json', excerpt=line) from error
  if not isinstance(value, dict):
    raise Drop('not_an_object', excerpt=line)
  return value


def _read_json_lines(stream: BinaryIO, max_bytes: int) -> Objects:
  return parse_each(parse_line, read_lines(stream, max_bytes))


def _read_document(stream: BinaryIO, path: str, max_bytes: int) -> Objects:
  """Yields the objects of a file that looks like one document."""
  try:
    text = _read_text(stream, path)
  except (Drop, UserError) as fault:
    with open_raw(path) as again:
      lines = _read_json_lines(again, max_bytes)
      if not _are_lines(lines, isinstance(fault, UserError)):
        raise
    text = None
  if text is None:
    with open_raw(path) as again:
      yield from _read_json_lines(again, max_bytes)
    return
  for num, value in enumerate(_values(text), start=1):
    if not isinstance(value, dict):
      value = Drop('not_an_object', excerpt=json.dumps(value).encode())
    yield num, value


def _read_text(stream: BinaryIO, path: str) -> str:
  """Returns the text of a whole document."""
  data = stream.read(_MAX_DOCUMENT_BYTES + 1)
  if len(data) > _MAX_DOCUMENT_BYTES:
    raise UserError(
      '`--input` must hold JSON documents of at most '
      f'{_MAX_DOCUMENT_BYTES >> 20} MiB, but {path!r} is larger. Write an '
      "object to a line, for example with `jq -c '.[]'`."
    )
  try:
    text = data.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8', damage=True, excerpt=data) from error
  del data
  # Whether it is a document shows at its end. All values at a time would take
  # 25 times the memory of the text, if they are brackets.
  for _ in _values(text):
    pass
  return text


def _values(text: str) -> Iterator[Any]:
  """Yields the one value, or those of the array, that a text holds.

  Raises:
    Drop: malformed_json, at the fault.
  """
  end = _skip_spaces(text, 0)
  bracket = ']' if text.startswith('[', end) else ''
  try:
    if bracket:
      end = _skip_spaces(text, end + 1)
    if not bracket or not text.startswith(bracket, end):
      value, end = _raw_decode(text, end)
      yield value
      end = _skip_spaces(text, end)
      while bracket and text.startswith(',', end):
        value, end = _raw_decode(text, _skip_spaces(text, end + 1))
        yield value
        end = _skip_spaces(text, end)
    rest = _skip_spaces(text, end + len(bracket))
    if not text.startswith(bracket, end) or rest < len(text):
      raise ValueError('the document does not end here')
  except (ValueError, RecursionError):
    excerpt = text[:EXCERPT_BYTES].encode()
    # Without the error, which keeps the text.
    raise Drop('malformed_json', damage=True, excerpt=excerpt) from None


def _skip_spaces(text: str, start: int) -> int:
  return _SPACES.match(text, start).end()


def _are_lines(lines: Objects, is_large: bool) -> bool:
  """Says whether a file that is no document is one of JSON lines."""
  values = (value for _, value in itertools.islice(lines, _MAX_LINES))
  if is_large:
    # No document holds two objects without a comma between them.
    found = list(itertools.islice(values, 1, 3))
    return len(found) == 2 and all(isinstance(v, dict) for v in found)
  # Only its first line is broken, or each is an array.
  return any(
    isinstance(value, dict) or (num, value.reason) == (1, 'not_an_object')
    for num, value in enumerate(values, start=1)
  )
