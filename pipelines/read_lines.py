"""Splits what a file holds into lines, as far as it can be read."""

from collections.abc import Iterable, Iterator

from pipelines.source import Drop

EXCERPT_BYTES = 200
"""How much of a dropped record goes with its `Drop`."""

BYTE_ORDER_MARK = b'\xef\xbb\xbf'
"""Some editors begin a UTF-8 file with it; JSON does not allow it."""


def split_lines(
  chunks: Iterable[bytes], max_line_bytes: int
) -> Iterator[tuple[int, bytes | Drop]]:
  """Yields (1-based line number, line without its end) of a file.

  A longer line than `max_line_bytes` is never held in memory: in its place
  comes the `Drop` document_too_large. If a compressed file is cut off or
  corrupt, every line before that is yielded, and then one `Drop` with `damage`
  set for the line at which reading stopped.

  Args:
    chunks: The pieces of a file, as `raw_bytes.read_chunks` yields them.
    max_line_bytes: How long a line may be, without its end.
  """
  line = _OpenLine(max_line_bytes)
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
      if len(piece) > max_line_bytes:
        yield line_num, _too_large(piece)
      else:
        yield line_num, piece
  if line.num_bytes:
    yield line_num + 1, line.close(line_num + 1)


class _OpenLine:
  """The line that is not complete yet.

  Its pieces are a list, because adding to one string would copy a very long
  line again and again.
  """

  def __init__(self, max_bytes: int):
    self._max_bytes = max_bytes
    self._pieces = []
    self.num_bytes = 0

  def add(self, piece: bytes) -> None:
    self.num_bytes += len(piece)
    if self.num_bytes <= self._max_bytes:
      self._pieces.append(piece)
    elif sum(map(len, self._pieces)) < EXCERPT_BYTES:
      self._pieces.append(piece[:EXCERPT_BYTES])

  def close(self, line_num: int) -> bytes | Drop:
    """Returns the line, and starts the next."""
    line = b''.join(self._pieces)
    too_large = self.num_bytes > self._max_bytes
    self._pieces, self.num_bytes = [], 0
    if line_num == 1:
      line = line.removeprefix(BYTE_ORDER_MARK)
    return _too_large(line) if too_large else line


def _too_large(line: bytes) -> Drop:
  return Drop('document_too_large', excerpt=line[:EXCERPT_BYTES])
