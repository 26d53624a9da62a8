"""Opens raw files and unpacks them: gzip, bzip2, xz and LZMA.

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
from collections.abc import Callable
from typing import Any, BinaryIO

# zlib's interface at twice its speed, which is what reading json.gz waits for.
from zlib_ng import zlib_ng

from pipelines.source import Drop
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
# Pattern of the first bytes -> name, and function that makes a decompressor.
# LZMA has no magic number: every encoder's properties, and the low bytes of its
# window's size.
_PACKINGS = {
  rb'\x1f\x8b': ('gzip', _new_gzip),
  rb'BZh': ('bzip2', bz2.BZ2Decompressor),
  rb'\xfd7zXZ\0': ('xz', _new_xz),
  rb']\0\0': ('LZMA', _new_xz),
}
_FAULTS = (zlib_ng.error, lzma.LZMAError, OSError)
_REPACK = 'Pack it with gzip: `{} | gzip > {{gz}}`.'.format
_UNPACK = 'Unpack it.'
# Pattern of the first bytes -> what it is, and advice.
_REFUSED = {
  # Parallel zstd begins with a frame to skip. Dumps have windows of 2 GiB.
  rb'\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18': (
    'zstd',
    _REPACK('zstd -dc --long=31 {name}'),
  ),
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
_INSIDE = {p: name for p, (name, _) in _PACKINGS.items()} | {
  rb'PAR1': 'Parquet'
}


def open_raw(path: str) -> io.BufferedReader:
  """Opens a raw file, to read its unpacked content once.

  Reads plain files, gzip, bzip2, xz and LZMA, also several streams one after
  another, and zeros behind them. Memory does not depend on the file.

  Args:
    path: A local or remote path.

  Returns:
    A file that cannot be sought in. Reading raises `Drop` where the file is
    damaged, truncated_file or corrupt_file. Everything before that can be read,
    but for what the 16 KiB hold in which the file is corrupt.

  Raises:
    UserError: If the file is of a known format that is not read, or holds one;
      when it is read, if xz needs more than 1 GiB of memory.
  """
  with contextlib.ExitStack() as on_error:
    file = on_error.enter_context(places.open_file(path))
    start = file.read(_PACKED_BYTES)
    file.seek(0)
    _refuse(start, path)
    if packing := _find(_PACKINGS, start):
      unpacked = _Unpacked(file, packing[1], path)
      file = io.BufferedReader(unpacked, _BUFFER_BYTES)
      start = start_of(file)
      _refuse(start, path, packing[0])
    on_error.pop_all()
  return file


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
    '`--input` must name text or Parquet, plain or packed once with gzip, xz '
    f'or bzip2, but {path!r} is {found}. {advice}'
  )


class _Unpacked(io.RawIOBase):
  """The content of a packed file; closes the file."""

  def __init__(self, file: BinaryIO, new_stream: Callable[[], Any], path: str):
    self._file, self._new_stream, self._path = file, new_stream, path
    self._stream, self._packed = new_stream(), b''
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
    while size < len(buffer) and self._damage is None:
      # Bounded: 16 KiB may unpack to gigabytes.
      data = self._read(min(len(buffer) - size, _BUFFER_BYTES))
      if not data:
        break
      buffer[size : size + len(data)] = data
      size += len(data)
    if not size and self._damage is not None:
      raise self._damage
    return size

  def _read(self, max_bytes: int) -> bytes:
    """Returns the next bytes; none at the end, and at damage."""
    data = b''
    while not data:
      if self._stream.eof:
        # Another stream may follow, and zeros.
        packed = self._packed.lstrip(b'\0')
        while not packed and (fetched := self._file.read(_PACKED_BYTES)):
          packed = fetched.lstrip(b'\0')
        if not packed:
          return b''
        self._packed, self._stream = packed, self._new_stream()
      elif not self._packed and getattr(self._stream, 'needs_input', True):
        self._packed = self._file.read(_PACKED_BYTES)
        if not self._packed:
          return self._end('truncated_file')
      try:
        data = self._stream.decompress(self._packed, max_bytes)
      except _FAULTS as error:
        if 'Memory usage limit' in str(error):
          raise UserError(
            '`--input` must name xz files that unpack in at most '
            f'{_MAX_XZ_BYTES >> 20} MiB of memory, but {self._path!r} takes '
            'more. Pack it with gzip.'
          ) from error
        return self._end('corrupt_file')
      # bz2 and lzma keep what they have not unpacked, zlib gives it back.
      name = 'unused_data' if self._stream.eof else 'unconsumed_tail'
      self._packed = getattr(self._stream, name, b'')
    return data

  def _end(self, reason: str) -> bytes:
    self._damage = Drop(reason, damage=True)
    return b''
