"""Opens raw files and unpacks them: gzip, bzip2, xz and LZMA.

A file's first bytes tell how it is packed, never its name.
"""

import bz2
import functools
import io
import lzma
import posixpath
import shlex
from collections.abc import Callable
from typing import Any, BinaryIO

# zlib's interface at twice its speed, which is what reading json.gz waits for.
from zlib_ng import zlib_ng

from pipelines.source import Drop
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

START_BYTES = 1 << 17
"""How much of a file can be looked at before it is read."""

# What is unpacked at a time: what one call unpacks is lost where it fails.
_PACKED_BYTES = 1 << 14
# `xz -9` needs 65 MiB.
_XZ_MEMORY_BYTES = 1 << 30

_new_xz = functools.partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY_BYTES)
# First bytes -> name, and a function that makes a decompressor.
_PACKINGS = {
  b'\x1f\x8b': (
    'gzip',
    functools.partial(zlib_ng.decompressobj, wbits=16 + zlib_ng.MAX_WBITS),
  ),
  b'BZh': ('bzip2', bz2.BZ2Decompressor),
  b'\xfd7zXZ\0': ('xz', _new_xz),
  # LZMA has no magic number: every encoder's properties, and the low bytes of a
  # window of whole 64 KiB.
  b']\0\0': ('LZMA', _new_xz),
}
_FAULTS = (zlib_ng.error, lzma.LZMAError, OSError)
_REFUSED = {
  b'\x28\xb5\x2f\xfd': 'zstd',
  b'\x04\x22\x4d\x18': 'lz4',
  b'PK\x03\x04': 'zip',
  b'Rar!\x1a\x07': 'rar',
  b'7z\xbc\xaf\x27\x1c': '7z',
}
_NOT_INSIDE = {
  **{magic: name for magic, (name, _) in _PACKINGS.items()},
  **_REFUSED,
  b'PAR1': 'Parquet',
}


def open_raw(path: str) -> io.BufferedReader:
  """Opens a raw file, to read its unpacked content once.

  Reads plain files, gzip, bzip2, xz and LZMA, also several streams one after
  another, and zeros behind them. Memory does not depend on the file.

  Args:
    path: A local or remote path.

  Returns:
    A reader whose `peek()` gives the first `START_BYTES`, or all there are.
    Reading raises `Drop` where the file is damaged: truncated_file or
    corrupt_file, with `damage` set. Everything before that can be read, but for
    what the 16 KiB hold in which the file is corrupt.

  Raises:
    UserError: If the file is of a known format that is not read, or holds one.
  """
  file = places.open_file(path)
  try:
    start = file.read(_PACKED_BYTES)
    if name := _find(_REFUSED, start):
      raise UserError(
        '`--input` must name plain, gzip, xz or bzip2 files, but '
        f'{path!r} is {name}. {_repacking(path, name)}.'
      )
    name, new_stream = _find(_PACKINGS, start) or ('', None)
    content = _Content(file, start, new_stream, path)
    stream = io.BufferedReader(content, START_BYTES)
    try:
      inside = name and _find(_NOT_INSIDE, stream.peek())
    except Drop:
      inside = ''  # Damage at the start is met again.
    if inside:
      raise UserError(
        f'`--input` must name files that are packed once, but {path!r} is '
        f'{name} with {inside} inside. Unpack it.'
      )
  except BaseException:
    file.close()
    raise
  return stream


def _find(table: dict[bytes, Any], start: bytes) -> Any:
  return next((table[m] for m in table if start.startswith(m)), None)


def _repacking(path: str, format_name: str) -> str:
  """Returns what to do with a file of a format that is not read."""
  if format_name != '7z':
    return 'Unpack it, or pack it with gzip'
  # The new name keeps that of the site, which tells its users apart.
  name = posixpath.basename(path)
  packed = f'{name.removesuffix(".7z")}.xml.gz'
  command = f'7z e -so {shlex.quote(name)} Posts.xml | gzip > '
  return f'Unpack it: {command}{shlex.quote(packed)}'


class _Content(io.RawIOBase):
  """The unpacked content of a file; closes the file."""

  def __init__(
    self,
    file: BinaryIO,
    start: bytes,
    new_stream: Callable[[], Any] | None,
    path: str,
  ):
    self._file, self._packed, self._path = file, start, path
    self._num_read = len(start)
    self._new_stream = new_stream
    self._stream = new_stream and new_stream()
    self._damage: Drop | None = None

  def readable(self) -> bool:
    return True

  def close(self) -> None:
    if not self.closed:
      self._file.close()
    super().close()

  def readinto(self, buffer: memoryview) -> int:
    size = 0
    read = self._read_plain if self._stream is None else self._unpack
    while size < len(buffer) and self._damage is None:
      # Bounded: 16 KiB may unpack to gigabytes.
      data = read(min(len(buffer) - size, START_BYTES))
      if not data:
        break
      buffer[size : size + len(data)] = data
      size += len(data)
    if not size and self._damage is not None:
      raise self._damage
    return size

  def _read_plain(self, max_bytes: int) -> bytes:
    if not self._packed:
      return self._file.read(max_bytes)
    data, self._packed = self._packed[:max_bytes], self._packed[max_bytes:]
    return data

  def _fetch(self) -> bytes:
    data = self._file.read(_PACKED_BYTES)
    self._num_read += len(data)
    return data

  def _unpack(self, max_bytes: int) -> bytes:
    """Returns the next bytes; none at the end, and at damage."""
    data = b''
    while not data:
      if self._stream.eof:
        # Another stream may follow, and zeros.
        packed = self._packed.lstrip(b'\0')
        while not packed and (fetched := self._fetch()):
          packed = fetched.lstrip(b'\0')
        if not packed:
          return b''
        self._packed, self._stream = packed, self._new_stream()
      elif not self._packed and getattr(self._stream, 'needs_input', True):
        self._packed = self._fetch()
        if not self._packed:
          return self._end('truncated_file')
      try:
        data = self._stream.decompress(self._packed, max_bytes)
      except _FAULTS as error:
        if 'Memory usage limit' in str(error):
          raise UserError(
            f'`--input` must name xz files that {_XZ_MEMORY_BYTES >> 20} MiB '
            f'of memory suffice to unpack, but {self._path!r} needs more. '
            'Unpack it, or pack it with gzip.'
          ) from error
        return self._end('corrupt_file')
      # bz2 and lzma keep what they have not unpacked, zlib gives it back.
      is_end = self._stream.eof
      name = 'unused_data' if is_end else 'unconsumed_tail'
      self._packed = getattr(self._stream, name, b'')
    return data

  def _end(self, reason: str) -> bytes:
    byte = self._num_read - len(self._packed)
    self._damage = Drop(reason, damage=True, byte=byte)
    return b''
