"""Unpacks zstd, block by block (RFC 8878, section 3).

`zstandard` has no limit for the size of what one call unpacks. A block unpacks
to at most 128 KiB, so a call gets one block, and its end tells whether the file
is whole.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

import zstandard

from pipelines.source import Drop
from tff_fedfish.errors import UserError

DEFAULT_WINDOW_LOG = 27
"""Windows of 128 MiB, which `zstd --ultra -22` has."""
MAX_WINDOW_LOG = 31

_SKIPPABLE = re.compile(rb'[\x50-\x5f]\x2a\x4d\x18')
_MAX_BLOCK_BYTES = 1 << 17
_SKIPPED_BYTES = 1 << 20
_MAGIC_BYTES, _MIN_HEADER_BYTES = 4, 5
# Kind of a block that repeats one byte, whatever its size.
_REPEATED = 1


def unpack_zstd(
  file: BinaryIO, path: str, max_window_log: int
) -> Iterator[bytes]:
  """Yields the content of frames, at most 128 KiB at a time.

  Skips skippable frames, and zeros between and behind frames.

  Args:
    file: The packed file.
    path: Its name in errors.
    max_window_log: Base-2 logarithm of the largest window, in bytes.

  Raises:
    Drop: truncated_file or corrupt_file, behind all that can be unpacked.
    UserError: If a frame has a larger window.
  """
  decompressor = zstandard.ZstdDecompressor(max_window_size=1 << max_window_log)
  try:
    while magic := file.read(_MAGIC_BYTES):
      if not magic.strip(b'\0'):
        continue
      if _SKIPPABLE.fullmatch(magic):
        size = int.from_bytes(_read(file, 4), 'little')
        while size:
          size -= len(_read(file, min(size, _SKIPPED_BYTES)))
        continue
      header = magic + _read(file, _MIN_HEADER_BYTES - len(magic))
      header += _read(file, zstandard.frame_header_size(header) - len(header))
      frame = zstandard.get_frame_parameters(header)
      _require_window(frame.window_size, path, max_window_log)
      stream = decompressor.decompressobj(write_size=_MAX_BLOCK_BYTES)
      stream.decompress(header)
      is_last = 0
      while not is_last:
        block = _read(file, 3)
        number = int.from_bytes(block, 'little')
        is_last, kind, size = number & 1, number >> 1 & 3, number >> 3
        block += _read(file, 1 if kind == _REPEATED else size)
        yield stream.decompress(block)
      if frame.has_checksum:
        stream.decompress(_read(file, 4))
  except zstandard.ZstdError as error:
    raise Drop('corrupt_file', damage=True) from error


def _read(file: BinaryIO, size: int) -> bytes:
  data = file.read(size)
  if len(data) < size:
    raise Drop('truncated_file', damage=True)
  return data


def _require_window(num_bytes: int, path: str, max_window_log: int) -> None:
  log = max(num_bytes - 1, 1).bit_length()
  if log > MAX_WINDOW_LOG:
    raise Drop('corrupt_file', damage=True)
  if log > max_window_log:
    raise UserError(
      f'`--max_window_log` must be at least {log} for {path!r}, but is '
      f'{max_window_log}: the zstd window takes {1 << log >> 20:,} MiB of '
      f'memory in each process that reads. Add `--max_window_log {log}`.'
    )
