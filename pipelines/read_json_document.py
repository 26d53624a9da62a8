"""Reads the objects of a JSON document: one object, or an array of them.

The elements of an array are decoded one after another, so that a fault costs
none that stand before it, and an array of 100 GB needs the memory of one.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from pipelines.raw_bytes import read_start
from pipelines.read_json_lines import parse_line, read_json_lines
from pipelines.source import EXCERPT_BYTES, Drop

_raw_decode = json.JSONDecoder().raw_decode
_SPACES = re.compile(r'[ \t\r\n]*')
# A fault nearer to the end than this may be half of something that goes on:
# the longest are '-Infinity' and '\uXXXX'.
_LONGEST_TOKEN = 16


def read_document(
  open_chunks: Callable[[], Iterator[bytes]], max_bytes: int
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
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
    damage = text.damage
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
  return Drop('not_an_object', excerpt=json.dumps(value).encode())


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
    damage: The `Drop` that ends the file, if that was met.
  """

  def __init__(self, chunks: Iterator[bytes], max_bytes: int):
    self.damage: Drop | None = None
    self._chunks = chunks
    self._max_bytes = max_bytes
    self._decode = codecs.getincrementaldecoder('utf-8-sig')().decode
    # What is decoded, how much of it is used, and bytes behind it that are no
    # UTF-8.
    self._text, self._position, self._rest = '', 0, b''
    self._is_at_end = False
    # Why the text ends where it does, if not with the file.
    self._end_fault: Drop | None = None

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
    if self._position < len(self._text) or self._end_fault is not None:
      raise self.fault()

  def fault(self, may_go_on: bool | None = None) -> Drop:
    """Returns why the text is wrong here.

    Args:
      may_go_on: Whether it is wrong only because it ends; None if it is at its
        end.
    """
    if may_go_on is None:
      may_go_on = self._position == len(self._text)
    if may_go_on and self.damage is not None:
      return self.damage
    drop = may_go_on and self._end_fault or Drop('malformed_json')
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
    while num_read < num_wanted and not self._is_at_end:
      pieces.append(self._read_piece())
      num_read += len(pieces[-1])
    self._text, self._position = ''.join(pieces), 0
    return num_read > 0

  def _read_piece(self) -> str:
    try:
      chunk = next(self._chunks, b'')
      self._is_at_end = not chunk
      return self._decode(chunk, final=not chunk)
    except Drop as damage:
      self.damage = self._end_fault = damage
      piece = ''
    except UnicodeDecodeError as error:
      self._end_fault = Drop('invalid_utf8')
      self._rest = error.object[error.start :][:EXCERPT_BYTES]
      piece = error.object[: error.start].decode()
    self._is_at_end = True
    return piece

  def _excerpt(self) -> bytes:
    end = self._position + EXCERPT_BYTES
    text = self._text[self._position : end].encode()
    return (text + self._rest)[:EXCERPT_BYTES]
