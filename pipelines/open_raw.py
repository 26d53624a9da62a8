"""Opens raw files and unpacks them: gzip, zstd, bzip2, xz and LZMA.

A file's first bytes tell how it is packed, never its name.
"""

import bz2
import contextlib
import functools
import io
import lzma
import os
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

# zlib's interface at twice its speed, which is what reading json.gz waits for.
from zlib_ng import zlib_ng

from pipelines.source import Drop
from pipelines.unpack_zstd import DEFAULT_WINDOW_LOG, unpack_zstd
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

# Of what is unpacked; the most that `start_of` returns.
_BUFFER_BYTES = 1 << 17
# What is unpacked at a time: what one call unpacks is lost where it fails.
_PACKED_BYTES = 1 << 14

_new_gzip = functools.partial(
  zlib_ng.decompressobj, wbits=16 + zlib_ng.MAX_WBITS
)
# `xz -9` needs 65 MiB.
_MAX_XZ_BYTES = 1 << 30
_new_xz = functools.partial(lzma.LZMADecompressor, memlimit=_MAX_XZ_BYTES)
_FAULTS = (zlib_ng.error, lzma.LZMAError, OSError)
_REPACK = 'Pack it with gzip: `{} | gzip > {{gz}}`.'.format
_UNPACK = 'Unpack it.'
# Pattern of the first bytes -> what it is, and advice.
_REFUSED = {
  rb'[\x02\x04][\x21\x22][\x4c\x4d]\x18': ('lz4', _REPACK('lz4 -dc {name}')),
  rb'PK\x03\x04': ('zip', _REPACK('unzip -p {name}')),
  rb'7z\xbc\xaf\x27\x1c': ('7z', _REPACK('7z e -so {name} Posts.xml')),
  rb'.{257}ustar(?:\0|  \0)': (
    'a tar archive',
    'Unpack it with `tar -xf {name}`, and name the files in it.',
  ),
  rb'version https://git-lfs\.': (
    'a pointer of Git LFS',
    'Fetch the file itself with `git lfs pull`.',
  ),
  rb'WARC/\d': ('WARC', 'Write the texts of its pages to JSON lines.'),
}


def open_raw(
  path: str, max_window_log: int = DEFAULT_WINDOW_LOG
) -> io.BufferedReader:
  """Opens a raw file, to read its unpacked content once.

  Reads plain files, gzip, zstd, bzip2, xz and LZMA, also several streams one
  after another, and zeros behind them. Memory does not depend on the file.

  Args:
    path: A local or remote path.
    max_window_log: Base-2 logarithm of the largest window of zstd, in bytes.

  Returns:
    A file that cannot be sought in. Reading raises `Drop` where the file is
    damaged, truncated_file or corrupt_file. Everything before that can be read,
    but for what the 16 KiB, or the block of zstd, hold in which the file is
    corrupt.

  Raises:
    UserError: If the file is of a known format that is not read, or holds one;
      when it is read, if xz needs more than 1 GiB of memory, or zstd a larger
      window.
  """
  with contextlib.ExitStack() as on_error:
    file = on_error.enter_context(places.open_file(path))
    start = file.read(_PACKED_BYTES)
    file.seek(0)
    _refuse(start, path)
    if packing := _find(_PACKINGS, start):
      name, unpack = packing
      unpacked = _Unpacked(file, unpack(file, path, max_window_log))
      file = io.BufferedReader(unpacked, _BUFFER_BYTES)
      start = start_of(file)
      _refuse(start, path, name)
    on_error.pop_all()
  return file


def is_plain(file: io.BufferedReader) -> bool:
  """Says whether an open file is not packed; it can be sought in then."""
  return not isinstance(file.raw, _Unpacked)


def start_of(file: io.BufferedReader) -> bytes:
  """Returns at least some kB with which a file begins, without reading them.

  A file that is damaged before that has none; who reads meets the damage.
  """
  with contextlib.suppress(Drop):
    return file.peek()
  return b''


def _find(table: dict[bytes, Any], start: bytes) -> Any:
  matches = (table[p] for p in table if re.match(p, start, re.DOTALL))
  return next(matches, None)


def _refuse(start: bytes, path: str, packing: str = '') -> None:
  """Raises UserError if the content that begins so is not read."""
  found, advice = _find(_REFUSED, start) or ('', _UNPACK)
  if packing:
    found = found or _find(_INSIDE, start)
    advice = _UNPACK if '{gz}' in advice else advice
  if not found:
    return
  name = os.path.basename(path)
  advice = advice.format(name=shlex.quote(name), gz=shlex.quote(f'{name}.gz'))
  found = f'{packing} with {found} inside' if packing else found
  raise UserError(
    '`--input` must name text or Parquet, plain or packed once with gzip, '
    f'zstd, xz or bzip2, but {path!r} is {found}. {advice}'
  )


def _unpack_streams(
  new_stream: Callable[[], Any],
  file: BinaryIO,
  path: str,
  max_window_log: int,
) -> Iterator[bytes]:
  """Yields the content of one or several streams; raises `Drop` at damage."""
  del max_window_log
  stream, packed = new_stream(), b''
  while True:
    if stream.eof:
      # Another stream may follow, and zeros.
      packed = packed.lstrip(b'\0')
      while not packed and (fetched := file.read(_PACKED_BYTES)):
        packed = fetched.lstrip(b'\0')
      if not packed:
        return
      stream = new_stream()
    elif not packed and getattr(stream, 'needs_input', True):
      packed = file.read(_PACKED_BYTES)
      if not packed:
        raise Drop('truncated_file', damage=True)
    try:
      # Bounded: 16 KiB may unpack to gigabytes.
      yield stream.decompress(packed, _BUFFER_BYTES)
    except _FAULTS as error:
      if 'Memory usage limit' in str(error):
        raise UserError(
          '`--input` must name xz files that unpack in at most '
          f'{_MAX_XZ_BYTES >> 20} MiB of memory, but {path!r} takes more. Pack '
          'it with gzip.'
        ) from error
      raise Drop('corrupt_file', damage=True) from error
    # bz2 and lzma keep what they have not unpacked, zlib gives it back.
    name = 'unused_data' if stream.eof else 'unconsumed_tail'
    packed = getattr(stream, name, b'')


# Pattern of the first bytes -> name, and function that unpacks. LZMA has no
# magic number: every encoder's properties, and the low bytes of its window's
# size. Parallel zstd begins with a frame to skip.
_PACKINGS = {
  rb'\x1f\x8b': ('gzip', functools.partial(_unpack_streams, _new_gzip)),
  rb'\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18': ('zstd', unpack_zstd),
  rb'BZh': (
    'bzip2',
    functools.partial(_unpack_streams, bz2.BZ2Decompressor),
  ),
  rb'\xfd7zXZ\0': ('xz', functools.partial(_unpack_streams, _new_xz)),
  rb']\0\0': ('LZMA', functools.partial(_unpack_streams, _new_xz)),
}
_INSIDE = {p: name for p, (name, _) in _PACKINGS.items()} | {
  rb'PAR1': 'Parquet'
}


class _Unpacked(io.RawIOBase):
  """The content of a packed file; closes the file."""

  def __init__(self, file: BinaryIO, pieces: Iterator[bytes]):
    self._file, self._pieces = file, filter(None, pieces)
    self._piece = memoryview(b'')
    self._damage: Drop | None = None

  def readable(self) -> bool:
    return True

  def close(self) -> None:
    if not self.closed:
      self._file.close()
    super().close()

  def readinto(self, buffer: memoryview) -> int:
    size = 0
    # Filled, so that `start_of` returns enough of a file of short streams.
    while size < len(buffer) and (piece := self._piece or self._next()):
      data = piece[: len(buffer) - size]
      buffer[size : size + len(data)] = data
      self._piece = piece[len(data) :]
      size += len(data)
    if not size and self._damage is not None:
      raise self._damage
    return size

  def _next(self) -> memoryview:
    """Returns the next bytes; none at the end, and at damage."""
    try:
      return memoryview(next(self._pieces, b''))
    except Drop as damage:
      self._damage = damage
      return memoryview(b'')
