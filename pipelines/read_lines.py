"""Splits what a file holds into lines, as far as it can be read."""

from collections.abc import Iterable, Iterator

from pipelines.source import Drop

EXCERPT_BYTES = 200
"""How much of a dropped record goes with its `Drop`."""

BYTE_ORDER_MARK = b'\xef\xbb\xbf'
"""Some editors begin a UTF-8 file with it; JSON does not allow it."""

_START_BYTES = EXCERPT_BYTES + len(BYTE_ORDER_MARK)


def split_lines(
  chunks: Iterable[bytes],
  max_line_bytes: int,
  max_content_bytes: int | None = None,
) -> Iterator[tuple[int, bytes | Drop]]:
  r"""Yields (1-based line number, line without its end) of a file.

  In place of a line that is too long comes the `Drop` document_too_large; as
  soon as it is known to be, only its beginning is kept. If a compressed file
  is cut off or corrupt, every line before that is yielded, and then one `Drop`
  with `damage` set for the line at which reading stopped.

  Args:
    chunks: The pieces of a file, as `raw_bytes.read_chunks` yields them.
    max_line_bytes: How long a line may be, without its end.
    max_content_bytes: How long it may be where each of JSON's escapes, such as
      \u0041, counts as the one byte that it stands for at least; None: as
      `max_line_bytes`.
  """
  line = _OpenLine(max_line_bytes, max_content_bytes)
  line_num = 0
  chunks = iter(chunks)
  while True:
    try:
      chunk = next(chunks, None)
    except Drop as damage:
      # What is open may be half a record: it goes with the damage.
      yield line_num + 1, damage
      return
    if chunk is None:
      break
    first, *pieces = chunk.split(b'\n')
    line.add(first)
    if not pieces:
      continue
    line_num += 1
    yield line_num, line.close(line_num)
    line.add(pieces.pop())
    for piece in pieces:
      line_num += 1
      yield line_num, _too_large(piece) if line.is_too_long(piece) else piece
  if line.num_bytes:
    yield line_num + 1, line.close(line_num + 1)


class _OpenLine:
  """The line that is not complete yet.

  It grows in one place, because adding to bytes would copy a very long line
  again and again, and joining its pieces would hold it twice.
  """

  def __init__(self, max_bytes: int, max_content_bytes: int | None):
    self._max_bytes = max_bytes
    self._max_content_bytes = max_content_bytes or max_bytes
    self._start_anew()

  def _start_anew(self) -> None:
    self._line = bytearray()
    # Of the escapes, what they take beyond one byte.
    self.num_bytes = self._num_extra_bytes = 0
    self._is_too_long = False

  def add(self, piece: bytes) -> None:
    self.num_bytes += len(piece)
    if not self._is_too_long:
      self._num_extra_bytes += _num_extra_bytes(piece)
      self._is_too_long = self._exceeds(self.num_bytes, self._num_extra_bytes)
      self._line += piece
      if self._is_too_long:
        self._line = self._line[:_START_BYTES]
    elif len(self._line) < _START_BYTES:
      self._line += piece[:_START_BYTES]

  def is_too_long(self, line: bytes) -> bool:
    """Returns whether a whole line is."""
    return len(line) > self._max_content_bytes and self._exceeds(
      len(line), _num_extra_bytes(line)
    )

  def _exceeds(self, num_bytes: int, num_extra_bytes: int) -> bool:
    return (
      num_bytes > self._max_bytes
      or num_bytes - num_extra_bytes > self._max_content_bytes
    )

  def close(self, line_num: int) -> bytes | Drop:
    """Returns the line, and starts the next."""
    line, too_large = bytes(self._line), self._is_too_long
    self._start_anew()
    if line_num == 1:
      line = line.removeprefix(BYTE_ORDER_MARK)
    return _too_large(line) if too_large else line


def _num_extra_bytes(piece: bytes) -> int:
  # \\n is two bytes for one, \\u000a six.
  return piece.count(b'\\') + 4 * piece.count(b'\\u')


def _too_large(line: bytes) -> Drop:
  return Drop('document_too_large', excerpt=line[:EXCERPT_BYTES])
