"""Reads the objects of a JSON document: one object, or an array of them.

The elements of an array are decoded one after another, so that a fault costs
none that stand before it, and an array of 100 GB needs the memory of one.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from pipelines.raw_bytes import CHUNK_BYTES
from pipelines.read_json_lines import parse_line, read_json_lines
from pipelines.read_lines import EXCERPT_BYTES
from pipelines.source import Drop

_raw_decode = json.JSONDecoder().raw_decode
_SPACES = re.compile(r'[ \t\r\n]*')
# A fault nearer to the end than this may be half of something that goes on:
# the longest are '-Infinity' and '\uXXXX'.
_LONGEST_TOKEN = 16


def read_document(
  chunks: Iterator[bytes], max_bytes: int
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
  """Yields (1-based number, object or why it is dropped) of a document.

  An array cannot be read beyond a fault: everything before it is yielded, and
  then one `Drop` with `damage` set. If no comma was found yet behind an
  element, and some line is an object, then it is the file's first line that is
  broken, and the file is read as lines.

  Args:
    chunks: The pieces of the file. If they end with a `Drop`, so does this.
    max_bytes: How long an object may be; also how much of the file is kept to
      read it as lines.

  Returns:
    An iterator; in its `Drop`s are, besides those of the pieces, not_an_object,
    and for faults document_too_large, invalid_utf8 and malformed_json.
  """
  text = _Text(chunks, max_bytes)
  num, values, fault, is_array = 0, [], None, False
  try:
    is_array = text.take('[')
    if not (is_array and text.take(']')):
      values = [text.value()]
      while is_array and text.take(','):
        text.forget_start()
        num += 1
        yield num, _object(values.pop())
        values = [text.value()]
      if is_array and not text.take(']'):
        raise text.fault()
    text.check_end()
  except Drop as drop:
    if any(map(_is_object, text.start().split(b'\n'))):
      yield from read_json_lines(text.chunks_again(), max_bytes)
      return
    # What ends the file counts for more than what is wrong before that.
    fault = text.damage or drop
    fault.damage = fault.damage or is_array
  for value in values:
    num += 1
    yield num, _object(value)
  if fault is not None:
    yield num + 1, fault


def _object(value: Any) -> dict[str, Any] | Drop:
  if isinstance(value, dict):
    return value
  found = json.dumps(value).encode()
  return Drop('not_an_object', excerpt=found[:EXCERPT_BYTES])


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
    self._chunks = chunks
    self._max_bytes = max_bytes
    self._decoder = codecs.getincrementaldecoder('utf-8-sig')()
    # What is decoded, how much of it is used, and bytes behind it that are no
    # UTF-8.
    self._text, self._position, self._rest = '', 0, b''
    self._is_at_end = False
    # Why the text ends where it does, if not with the file.
    self._end_fault: Drop | None = None
    self.damage: Drop | None = None
    # All that was read so far, until it is forgotten.
    self._start: list[bytes] | None = []
    self._start_bytes = 0

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

  def forget_start(self) -> None:
    """From now on, keeps no more than is needed."""
    self._start = None

  def start(self) -> bytes:
    """Returns the first `max_bytes` of the file, unless they are forgotten."""
    while self._start is not None and self._start_bytes <= self._max_bytes:
      if self._next_chunk() is None:
        break
    return b''.join(self._start or ())

  def chunks_again(self) -> Iterator[bytes]:
    """Yields the pieces of the file from its start, which must be kept."""
    yield from self._start
    if self.damage is not None:
      raise self.damage
    yield from self._chunks

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
    chunk = self._next_chunk()
    self._is_at_end = chunk is None
    if self.damage is not None:
      self._end_fault = self.damage
      return ''
    try:
      return self._decoder.decode(chunk or b'', final=chunk is None)
    except UnicodeDecodeError as error:
      self._is_at_end = True
      self._end_fault = Drop('invalid_utf8')
      self._rest = error.object[error.start :][:EXCERPT_BYTES]
      return error.object[: error.start].decode()

  def _next_chunk(self) -> bytes | None:
    try:
      chunk = next(self._chunks, None)
    except Drop as damage:
      self.damage, chunk = damage, None
    if chunk is not None and self._start is not None:
      self._start.append(chunk)
      self._start_bytes += len(chunk)
      if self._start_bytes > 2 * self._max_bytes + CHUNK_BYTES:
        # So much white space is not worth it.
        self.forget_start()
    return chunk

  def _excerpt(self) -> bytes:
    end = self._position + EXCERPT_BYTES
    text = self._text[self._position : end].encode()
    return (text + self._rest)[:EXCERPT_BYTES]
