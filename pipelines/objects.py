"""Reads objects - names with values - from a file of any format known here.

A file holds JSON objects (one to a line, or one for the whole file), the rows
of a Parquet table, or TFRecords of `tf.train.Example`s. Its first bytes, after
unpacking, tell which.
"""

import codecs
import functools
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from pipelines.open_raw import is_plain, open_raw, start_of
from pipelines.read_examples import decode_features, read_payloads
from pipelines.read_parquet import read_rows
from pipelines.source import (
  EXCERPT_BYTES,
  OBJECT,
  OTHER_FEATURES_BYTES,
  WHOLE_FILE,
  Drop,
  RawRecord,
  Span,
  parse_each,
)
from pipelines.unpack_zstd import DEFAULT_WINDOW_LOG
from tff_fedfish.data import records
from tff_fedfish.errors import UserError

Objects = Iterator[tuple[int, dict[str, Any] | Drop]]
"""(1-based number, object or why it is dropped)."""

# Escapes make a text longer than it is: \u00e9 is six bytes for two, and no
# other character that has to be escaped is frequent.
_BYTES_PER_TEXT_BYTE = 3
_LINE_PIECE_BYTES = 1 << 20

# An object that goes on in the next line.
_WHOLE_OBJECT = re.compile(rb'\s*\{[ \t\r]*\n\s*["}]')
_ARRAY = re.compile(rb'\[\s*\{')
# With the byte order mark, with which some editors begin a file.
_BEFORE_OBJECT = '\ufeff \t\r\n\v\f'
# Behind a backslash it is none, but for every second time.
_UNICODE = re.compile(rb'(?<!\\)\\u[0-9a-fA-F]{4}')
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_raw_decode = json.JSONDecoder().raw_decode


def read_objects(
  path: str,
  max_document_bytes: int,
  column_names: Collection[str] | None = None,
  max_window_log: int = DEFAULT_WINDOW_LOG,
  span: Span = WHOLE_FILE,
) -> Objects:
  """Yields (1-based number, object or why it is dropped) of a file.

  The number is that of the line or row. What precedes damage is yielded; then
  comes one `Drop` with `damage` set.

  Args:
    path: A local or remote path.
    max_document_bytes: The longest text that the caller wants. A line, record
      or row of more than three times that and 1 MiB, or JSON of more than that
      and 1 MiB without its escapes, is document_too_large.
    column_names: The columns of a table that the caller looks at; None for all.
      Objects of other formats have all their names.
    max_window_log: As for `open_raw`.
    span: What to read of a file that `has_lines`; numbers count from its start.

  Returns:
    An iterator; in its `Drop`s are, besides those of `open_raw`, empty_line,
    invalid_utf8, malformed_json, not_an_object and malformed_example.

  Raises:
    UserError: If the file is of a known format that is not read.
  """
  max_bytes = longest_object(max_document_bytes)
  with open_raw(path, max_window_log) as stream:
    start = start_of(stream)
    if start.startswith(b'PAR1'):
      yield from read_rows(path, max_bytes, column_names)
    elif records.starts_with_frame(start):
      payloads = read_payloads(stream, max_bytes)
      yield from parse_each(decode_features, payloads)
    else:
      _refuse_other_json(start, path)
      parse = functools.partial(
        _parse_line, max_plain_bytes=max_document_bytes + OTHER_FEATURES_BYTES
      )
      if _is_whole(start):
        yield 1, _parse_whole(stream, max_bytes, parse)
      else:
        yield from parse_each(parse, read_lines(stream, max_bytes, span))


def has_lines(path: str) -> bool:
  """Says whether a file is plain JSON lines, which may be read in spans.

  Raises:
    UserError: If the file is of a known format that is not read.
  """
  with open_raw(path) as stream:
    start = start_of(stream)
    is_other = start.startswith(b'PAR1') or records.starts_with_frame(start)
    return is_plain(stream) and not is_other and not _is_whole(start)


def _is_whole(start: bytes) -> bool:
  return bool(_WHOLE_OBJECT.match(start.removeprefix(codecs.BOM_UTF8)))


def longest_object(max_document_bytes: int) -> int:
  """Returns how many bytes may be read for an object with a text."""
  return max_document_bytes * _BYTES_PER_TEXT_BYTE + OTHER_FEATURES_BYTES


def record_reader(
  parse: Callable[[dict[str, Any], int], RawRecord],
  column_names: Collection[str],
) -> Callable[..., Iterator[tuple[int, RawRecord | Drop]]]:
  """Returns a `Source.read_records` for files of objects.

  Args:
    parse: Called with each object and `max_document_bytes`; may raise `Drop`.
    column_names: What it looks at; see `read_objects`.
  """

  def read(
    path: str,
    max_document_bytes: int,
    max_window_log: int = DEFAULT_WINDOW_LOG,
    with_objects: bool = False,
    span: Span = WHOLE_FILE,
  ):
    def parse_one(value):
      return parse(value, max_document_bytes)

    def parse_with_object(value):
      return {**parse_one(value), OBJECT: value}

    names = None if with_objects else column_names
    return parse_each(
      parse_with_object if with_objects else parse_one,
      read_objects(path, max_document_bytes, names, max_window_log, span),
    )

  return read


def read_lines(
  stream: BinaryIO, max_bytes: int, span: Span = WHOLE_FILE
) -> Iterator[tuple[int, bytes | Drop]]:
  """Yields (1-based number, line with its end) of a raw file.

  A line of more than `max_bytes`, which are at least 1 MiB, comes as the `Drop`
  document_too_large; no more of it is in memory. The file's damage is passed
  on.
  """
  num = 0
  if span.start:
    stream.seek(span.start - 1)
    # The rest of a line that begins before, or the end of one.
    while line := stream.readline(_LINE_PIECE_BYTES):
      if line.endswith(b'\n'):
        break
  is_cut = span.stop < WHOLE_FILE.stop
  while not (is_cut and stream.tell() >= span.stop) and (
    line := stream.readline(_LINE_PIECE_BYTES)
  ):
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


def _parse_line(line: bytes, max_plain_bytes: int) -> dict[str, Any]:
  """Returns the object that a line of JSON holds."""
  # Brackets take 25 times their size in memory.
  if len(line) > max_plain_bytes and _plain_bytes(line) > max_plain_bytes:
    raise Drop('document_too_large')
  try:
    text = line.decode().lstrip(_BEFORE_OBJECT)
    value, end = _raw_decode(text)
    # A copy without its end would cost time.
    if text[end:].strip(' \t\r\n'):
      raise ValueError('something follows the object')
  except UnicodeDecodeError as error:
    raise Drop('invalid_utf8') from error
  except (ValueError, RecursionError) as error:
    if not text:
      raise Drop('empty_line') from error
    raise Drop('malformed_json') from error
  if not isinstance(value, dict):
    raise Drop('not_an_object')
  return value


def _refuse_other_json(start: bytes, path: str) -> None:
  """Raises if a file begins in UTF-16, or with JSON in another layout."""
  if start.startswith(_UTF16):
    raise UserError(
      f'`--input` must name files in UTF-8, but {path!r} is UTF-16. Save it as '
      'UTF-8, for example with `iconv -f UTF-16 -t UTF-8`.'
    )
  start = start.removeprefix(codecs.BOM_UTF8).lstrip()
  if _ARRAY.match(start) and not _are_lines(start):
    raise UserError(
      f'`--input` must hold a JSON object to a line, but {path!r} is an array. '
      "Write its objects to lines, for example with `jq -c '.[]'`."
    )
  if start.startswith(b'{') and (several := _several_objects(start)):
    layout, command = several
    raise UserError(
      f'`--input` must hold a JSON object to a line, but {path!r} holds '
      f'several {layout}. Write each to a line, for example with `{command}`.'
    )


def _several_objects(start: bytes) -> tuple[str, str] | None:
  """Returns how objects follow each other, and a command that mends it.

  None for lines, and where the end of the first object is not seen.
  """
  text = start.decode(errors='ignore')
  try:
    _, end = _raw_decode(text)
  except (ValueError, RecursionError):
    return None
  rest = text[end:]
  between = rest[: len(rest) - len(rest.lstrip(', \t\r\n'))]
  if not rest[len(between) :].startswith('{'):
    return None
  if ',' in between:
    # As an array: a comma behind a brace may also stand within an object.
    array = "(echo [; sed '$ s/,[[:space:]]*$//' FILE; echo ])"
    return 'with commas between', f"{array} | jq -c '.[]'"
  if '\n' in text[:end]:
    return 'over several lines each', 'jq -c . FILE'
  return None if '\n' in between else ('on one line', 'jq -c . FILE')


def _are_lines(start: bytes) -> bool:
  """Says whether an array is the first of many lines, perhaps a broken one."""
  first, *others = map(bytes.strip, start.split(b'\n'))
  others = [line for line in others if line]
  if _is_json(first):
    return bool(others)
  # The file's array goes on in its next line.
  if not others or first.endswith(b','):
    return False
  second, *later = others
  if not later:
    # Not seen to its end.
    return first != b'[' and second.startswith(b'{')
  return _is_json(second) and not later[0].startswith((b',', b']'))


def _is_json(line: bytes) -> bool:
  try:
    json.loads(line)
  except (ValueError, RecursionError):
    return False
  return True


def _plain_bytes(line: bytes) -> int:
  """Returns how long a line is if its escapes are no longer than their text."""
  # One by one: what stands between them need not be in memory again.
  num_unicode = sum(1 for _ in _UNICODE.finditer(line))
  return len(line) - line.count(b'\\') - 3 * num_unicode


def _parse_whole(
  stream: BinaryIO, max_bytes: int, parse: Callable[[bytes], dict[str, Any]]
) -> dict[str, Any] | Drop:
  """Returns the object that a file is; damage, if it is none."""
  data = b''
  try:
    data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
      raise Drop('document_too_large')
    return parse(data)
  except Drop as drop:
    # Several long objects may follow each other.
    return Drop(drop.reason, damage=True, excerpt=data)
