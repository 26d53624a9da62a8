"""Reads JSON objects, one to a line, as far as a file can be read."""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipelines.source import EXCERPT_BYTES, Drop, parse_each

_START_BYTES = EXCERPT_BYTES + len(codecs.BOM_UTF8)

_raw_decode = json.JSONDecoder().raw_decode


def read_json_lines(
  chunks: Iterable[bytes],
  max_line_bytes: int,
  max_content_bytes: int | None = None,
) -> Iterator[tuple[int, dict[str, Any] | Drop]]:
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
  max_content_bytes = max_content_bytes or max_line_bytes

  def is_too_long(num_bytes: int, num_extra_bytes: int) -> bool:
    num_content_bytes = num_bytes - num_extra_bytes
    return num_bytes > max_line_bytes or num_content_bytes > max_content_bytes

  line, line_num = _OpenLine(is_too_long), 0
  try:
    for chunk in chunks:
      first, *pieces = chunk.split(b'\n')
      line.add(first)
      if not pieces:
        continue
      line_num += 1
      yield line_num, line.close(line_num)
      line = _OpenLine(is_too_long)
      line.add(pieces.pop())
      for piece in pieces:
        line_num += 1
        if len(piece) > max_content_bytes and is_too_long(
          len(piece), _num_extra_bytes(piece)
        ):
          piece = Drop('document_too_large', excerpt=piece)
        yield line_num, piece
  except Drop as damage:
    # What is open may be half a record: it goes with the damage.
    yield line_num + 1, damage
    return
  if line.num_bytes:
    yield line_num + 1, line.close(line_num + 1)


class _OpenLine:
  """The line that is not complete yet.

  It grows in one place, because adding to bytes would copy a very long line
  again and again, and joining its pieces would hold it twice.
  """

  def __init__(self, is_too_long: Callable[[int, int], bool]):
    self.num_bytes = self._num_extra_bytes = 0
    self._line = bytearray()
    self._is_too_long = is_too_long
    self._was_too_long = False

  def add(self, piece: bytes) -> None:
    self.num_bytes += len(piece)
    self._num_extra_bytes += _num_extra_bytes(piece)
    self._line += piece
    if self._was_too_long or self._is_too_long(
      self.num_bytes, self._num_extra_bytes
    ):
      self._was_too_long = True
      del self._line[_START_BYTES:]

  def close(self, line_num: int) -> bytes | Drop:
    line = bytes(self._line)
    if line_num == 1:
      line = line.removeprefix(codecs.BOM_UTF8)
    if self._was_too_long:
      return Drop('document_too_large', excerpt=line)
    return line


def _num_extra_bytes(piece: bytes) -> int:
  r"""Returns how many bytes JSON's escapes take beyond one each."""
  # \\n is two bytes for one, \\u000a six.
  return piece.count(b'\\') + 4 * piece.count(b'\\u')
