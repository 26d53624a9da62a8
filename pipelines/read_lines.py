"""Reads the lines of a plain or gzip file, as far as it can be read."""

import contextlib
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.source import Drop

_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b'\x1f\x8b'
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'


def read_lines(path: str) -> Iterator[tuple[int, bytes | Drop]]:
  """Yields (1-based line number, line without its end) of a file.

  Whether a file is compressed is told from its first bytes, not its name. If a
  compressed file is cut off or corrupt, every line before that is yielded, and
  then one `Drop` with `damage` set for the line at which reading stopped.

  Args:
    path: A local or remote path that Beam's file systems can open.
  """
  from apache_beam.io import filesystem, filesystems

  # Pieces of the line that is not complete yet. A list, because adding to one
  # string would copy a very long line again and again.
  pending = []
  line_num = 0
  damage = None
  with filesystems.FileSystems.open(
    path, compression_type=filesystem.CompressionTypes.UNCOMPRESSED
  ) as file:
    try:
      for chunk in _decompressed_chunks(file):
        first, *others = chunk.split(b'\n')
        pending.append(first)
        for piece in others:
          line_num += 1
          yield line_num, _without_mark(b''.join(pending), line_num)
          pending = [piece]
    except Drop as drop:
      damage = drop
  if damage is not None:
    # What is pending may be half a record: it goes with the damage.
    yield line_num + 1, damage
  elif line := b''.join(pending):
    yield line_num + 1, _without_mark(line, line_num + 1)


def _decompressed_chunks(file: BinaryIO) -> Iterator[bytes]:
  chunk = file.read(_CHUNK_BYTES)
  if not chunk.startswith(_GZIP_MAGIC):
    while chunk:
      yield chunk
      chunk = file.read(_CHUNK_BYTES)
    return
  member = _new_member()
  while chunk:
    before = member.copy()
    try:
      # Bounded, so that a small file that unpacks to terabytes does no harm.
      data = member.decompress(chunk, _CHUNK_BYTES)
    except zlib.error as error:
      yield _salvage(before, chunk)
      raise Drop('corrupt_file', damage=True) from error
    if data:
      yield data
    if member.eof:
      # gzip files may be concatenated, and padded with zeros.
      chunk = member.unused_data.lstrip(b'\0')
      while not chunk and (more := file.read(_CHUNK_BYTES)):
        chunk = more.lstrip(b'\0')
      if chunk:
        member = _new_member()
    else:
      chunk = member.unconsumed_tail or file.read(_CHUNK_BYTES)
  if not member.eof:
    raise Drop('truncated_file', damage=True)


def _salvage(member: 'zlib._Decompress', chunk: bytes) -> bytes:
  """Returns what unpacks before the fault that the chunk is known to have."""
  data = []
  with contextlib.suppress(zlib.error):
    for i in range(len(chunk)):
      data.append(member.decompress(chunk[i : i + 1]))
  return b''.join(data)


def _new_member() -> 'zlib._Decompress':
  return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _without_mark(line: bytes, line_num: int) -> bytes:
  # Some editors begin a UTF-8 file with a mark, which JSON does not allow.
  return line.removeprefix(_BYTE_ORDER_MARK) if line_num == 1 else line
