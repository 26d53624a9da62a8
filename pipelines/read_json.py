"""Reads JSON objects, one to a line or in one document, as far as they go.

The elements of a document that is an array are decoded one after another, so
that a fault costs none that stand before it, and an array of 100 GB needs the
memory of one.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipelines.raw_bytes import read_start
from pipelines.source import EXCERPT_BYTES, Drop, parse_each

Objects = Iterator[tuple[int, dict[str, Any] | Drop]]
"""(1-based number, object or why it is dropped)."""

_START_BYTES = EXCERPT_BYTES + len(codecs.BOM_UTF8)

_raw_decode = json.JSONDecoder().raw_decode
_SPACES = re.compile(r'[ \t\r\n]*')
# A fault nearer to the end than this may be half of something that goes on:
# the longest are '-Infinity' and '\uXXXX'.
_LONGEST_TOKEN = 16


def read_json_lines(
  chunks: Iterable[bytes],
  max_line_bytes: int,
  max_content_bytes: int | None = None,
) -> Objects:
  """Yields (1-based line number, object or why it is dropped).

  The arguments are those of `split_lines`. In the `Drop`s are, besides those of
  the pieces, document_too_large and those of `parse_line`.
  """
  lines = split_lines(chunks, max_line_bytes, max_content_bytes)
  return parse_each(parse_line, lines)


def parse_line(line: bytes) -> dict[str, Any]:
  """Returns the object that a line of JSON holds.

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
    if not line.strip():
      raise Drop('empty_line') from error
    is_text = not isinstance(error, UnicodeDecodeError)
    reason = 'malformed_json' if is_text else 'invalid_utf8'
    raise Drop(reason, excerpt=line) from error
  if not isinstance(value, dict):
    raise Drop('not_an_object', excerpt=line)
  return value


def split_lines(
  chunks: Iterable[bytes],
  max_line_bytes: int,
  max_content_bytes: int | None = None,
) -> Iterator[tuple[int, bytes | Drop]]:
  r"""Yields (1-based line number, line without its end) of a file.

  In place of a line that is too long comes the `Drop` document_too_large; as
  soon as it is known to be, only its beginning is kept. If a compressed file
  is cut off or corrupt, every line before that is yielded, and then one `Drop`
  with `damage` set for the line at which reading stopped. A byte order mark,
  with which some editors begin a file, is left out: JSON does not allow it.

  Args:
    chunks: The pieces of a file, as `raw_bytes.read_chunks` yields them.
    max_line_bytes: How long a line may be, without its end.
    max_content_bytes: How long it may be where each of JSON's escapes, such as
      \u0041, counts as the one byte that it stands for at least; None: as
      `max_line_bytes`.
  """
  limits = max_line_bytes, max_content_bytes or max_line_bytes
  line, num = _OpenLine(*limits), 1
  try:
    for chunk in chunks:
      first, *pieces = chunk.split(b'\n')
      line.add(first)
      if not pieces:
        continue
      yield num, line.close(num)
      line = _OpenLine(*limits)
      line.add(pieces.pop())
      for piece in pieces:
        num += 1
        if len(piece) > limits[1]:
          long_line = _OpenLine(*limits)
          long_line.add(piece)
          piece = long_line.close(num)
        yield num, piece
      num += 1
  except Drop as damage:
    # What is open may be half a record: it goes with the damage.
    yield num, damage
    return
  if line.num_bytes:
    yield num, line.close(num)


class _OpenLine:
  """A line that is not complete yet.

  It grows in one place, because adding to bytes would copy a very long line
  again and again, and joining its pieces would hold it twice.
  """

  def __init__(self, max_bytes: int, max_content_bytes: int):
    self.num_bytes = self._num_content_bytes = 0
    self._limits = max_bytes, max_content_bytes
    self._line = bytearray()
    self._is_too_long = False

  def add(self, piece: bytes) -> None:
    # \\n is two bytes for one, \\u000a six.
    num_extra_bytes = piece.count(b'\\') + 4 * piece.count(b'\\u')
    self.num_bytes += len(piece)
    self._num_content_bytes += len(piece) - num_extra_bytes
    self._line += piece
    max_bytes, max_content_bytes = self._limits
    self._is_too_long = (
      self._is_too_long
      or self.num_bytes > max_bytes
      or self._num_content_bytes > max_content_bytes
    )
    if self._is_too_long:
      del self._line[_START_BYTES:]

  def close(self, line_num: int) -> bytes | Drop:
    line = bytes(self._line)
    if line_num == 1:
      line = line.removeprefix(codecs.BOM_UTF8)
    if self._is_too_long:
      return Drop('document_too_large', excerpt=line)
    return line


def read_document(
  open_chunks: Callable[[], Iterator[bytes]], max_bytes: int
) -> Objects:
  """Yields (1-based number, object or why it is dropped) of a document.

  An array cannot be read beyond a fault: everything before it is yielded, and
  then one `Drop` with `damage` set. If no comma was found yet behind an
  element, and some line is an object, then it is the file's first line that is
  broken, and the file is read as lines.

  Args:
    open_chunks: Returns the pieces of the file, from its start, whenever it is
      called. If they end with a `Drop`, so does this.
    max_bytes: How long an object may be; also how much of the file is searched
      for a line that is an object.

  Returns:
    An iterator; in its `Drop`s are, besides those of the pieces, not_an_object,
    and for faults document_too_large, invalid_utf8 and malformed_json.
  """
  text = _Text(open_chunks(), max_bytes)
  num, values, fault, is_array = 0, [], None, False
  try:
    is_array = text.take('[')
    if not (is_array and text.take(']')):
      values = [text.value()]
      while is_array and text.take(','):
        num += 1
        yield num, _object(values.pop())
        values = [text.value()]
      if is_array and not text.take(']'):
        raise text.fault()
    text.check_end()
  except Drop as drop:
    damage = text.end if text.end is not None and text.end.damage else None
    if not num:
      start, damage = read_start(open_chunks(), max_bytes + 1)
      if any(map(_is_object, start.split(b'\n'))):
        yield from read_json_lines(open_chunks(), max_bytes)
        return
    # What ends the file counts for more than what is wrong before that.
    fault = damage or drop
    fault.damage = fault.damage or is_array
  for value in values:
    num += 1
    yield num, _object(value)
  if fault is not None:
    yield num + 1, fault


def _object(value: Any) -> dict[str, Any] | Drop:
  if isinstance(value, dict):
    return value
  data = json.dumps(value).encode()
  return Drop('not_an_object', excerpt=data)


def _is_object(line: bytes) -> bool:
  # Most lines of a document end here, without the cost of an exception.
  if not (line.startswith(b'{"') and line.rstrip().endswith(b'}')):
    return False
  try:
    parse_line(line)
  except Drop:
    return False
  return True


class _Text:
  """The text of a file, of which little more than one value is in memory.

  Attributes:
    end: Why the text ends where it does, if not with the file: the `Drop` of
      its pieces, or invalid_utf8.
  """

  def __init__(self, chunks: Iterator[bytes], max_bytes: int):
    self.end: Drop | None = None
    self._pieces = codecs.iterdecode(chunks, 'utf-8-sig')
    self._max_bytes = max_bytes
    # What is decoded, how much of it is used, and bytes behind it that are no
    # UTF-8.
    self._text, self._position, self._rest = '', 0, b''

  def take(self, character: str) -> bool:
    """Passes over white space and that character; False if another follows."""
    self._skip_spaces()
    found = self._text.startswith(character, self._position)
    self._position += found
    return found

  def value(self) -> Any:
    """Returns the value that follows, or raises why there is none."""
    self._skip_spaces()
    while True:
      try:
        value, end = _raw_decode(self._text, self._position)
      except json.JSONDecodeError as error:
        is_whole, end = False, len(self._text)
        may_go_on = (
          error.pos > end - _LONGEST_TOKEN or 'Unterminated' in error.msg
        )
      except (ValueError, RecursionError) as error:
        # Too many digits or brackets.
        raise self.fault(may_go_on=False) from error
      else:
        # At the end, 12 may be the beginning of 123.
        is_whole, may_go_on = True, end == len(self._text)
      if end - self._position > self._max_bytes and (is_whole or may_go_on):
        raise Drop('document_too_large', excerpt=self._excerpt())
      if not (may_go_on and self._read_on()):
        break
    if not is_whole:
      raise self.fault(may_go_on)
    self._position = end
    return value

  def check_end(self) -> None:
    """Raises why, if anything but white space follows."""
    self._skip_spaces()
    if self._position < len(self._text) or self.end is not None:
      raise self.fault()

  def fault(self, may_go_on: bool | None = None) -> Drop:
    """Returns why the text is wrong here.

    Args:
      may_go_on: Whether it is wrong only because it ends; None if it is at its
        end.
    """
    if may_go_on is None:
      may_go_on = self._position == len(self._text)
    drop = may_go_on and self.end or Drop('malformed_json')
    if not drop.damage:
      drop.excerpt = self._excerpt()
    return drop

  def _skip_spaces(self) -> None:
    while True:
      self._position = _SPACES.match(self._text, self._position).end()
      if self._position < len(self._text) or not self._read_on():
        return

  def _read_on(self) -> bool:
    """Reads about as much again as is left; False if nothing follows."""
    # A value that is tried again after every piece would cost its square.
    pieces = [self._text[self._position :]]
    num_left, num_read = len(pieces[0]), 0
    num_wanted = max(1, min(num_left, self._max_bytes - num_left))
    while num_read < num_wanted and (piece := self._read_piece()):
      pieces.append(piece)
      num_read += len(piece)
    self._text, self._position = ''.join(pieces), 0
    return num_read > 0

  def _read_piece(self) -> str:
    try:
      return next(self._pieces, '')
    except Drop as damage:
      self.end = damage
      return ''
    except UnicodeDecodeError as error:
      self.end = Drop('invalid_utf8')
      self._rest = error.object[error.start :][:EXCERPT_BYTES]
      return error.object[: error.start].decode()

  def _excerpt(self) -> bytes:
    end = self._position + EXCERPT_BYTES
    text = self._text[self._position : end].encode()
    return (text + self._rest)[:EXCERPT_BYTES]
