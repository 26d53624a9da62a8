"""Opens a raw file and unpacks it piece by piece, as far as it can be read.

How a file is compressed is told from its first bytes, never from its name.
"""

import bz2
import contextlib
import functools
import lzma
import posixpath
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

# zlib's interface at twice its speed, which is what reading json.gz waits for.
from zlib_ng import zlib_ng

from pipelines.source import Drop
from tff_fedfish.data import places
from tff_fedfish.errors import UserError

CHUNK_BYTES = 1 << 20
"""No piece is longer. A small file that unpacks to terabytes does no harm."""

_GZIP_MAGIC = b'\x1f\x8b'
_BZIP2_MAGIC = b'BZh'
# The second is the .lzma format, which has no magic number: the properties that
# every encoder writes, and the low bytes of a window size, whole 64 KiB.
_XZ_MAGICS = (b'\xfd7zXZ\0', b']\0\0')

_REFUSED = {
  b'\x28\xb5\x2f\xfd': 'zstd',
  b'\x04\x22\x4d\x18': 'lz4',
  b'PK\x03\x04': 'zip',
  b'Rar!\x1a\x07': 'rar',
  b'7z\xbc\xaf\x27\x1c': '7z',
}

# How much is read of a compressed file at a time. What one call of xz or bzip2
# unpacks is lost where that call fails, so these are given less.
_GZIP_READ_BYTES = 1 << 17
_READ_BYTES = 1 << 12

# What `xz -9` needs is 65 MiB.
_XZ_MEMORY_BYTES = 1 << 30


def read_chunks(path: str) -> Iterator[bytes]:
  """Yields the content of a file, unpacked, in pieces that are never empty.

  Reads plain files, gzip, xz, .lzma and bzip2, also several streams one after
  another, and zeros behind them.

  Args:
    path: A local or remote path that Beam's file systems can open.

  Raises:
    Drop: truncated_file or corrupt_file, with `damage` set, after everything
      before the fault was yielded. Its `byte` is the offset of the fault in the
      file as it is stored: exact for gzip, as far as zlib notices it; for xz
      and bzip2 the start of the 4 KiB in which it lies, whose content is lost.
    UserError: If the file is of a known format that is not read.
  """
  with places.open_file(path) as file:
    start = file.read(_READ_BYTES)
    for magic, name in _REFUSED.items():
      if start.startswith(magic):
        raise UserError(
          '`--input` must name plain, gzip, xz or bzip2 files, but '
          f'{path!r} is {name}. {_repacking(path, name)}.'
        )
    if start.startswith(_GZIP_MAGIC):
      yield from _read_gzip(file, start)
    elif start.startswith(_BZIP2_MAGIC):
      yield from _read_streams(file, start, bz2.BZ2Decompressor, OSError)
    elif start.startswith(_XZ_MAGICS):
      new_stream = functools.partial(
        lzma.LZMADecompressor, memlimit=_XZ_MEMORY_BYTES
      )
      try:
        yield from _read_streams(file, start, new_stream, lzma.LZMAError)
      except Drop as drop:
        if 'Memory usage limit' not in str(drop.__cause__):
          raise
        raise UserError(
          f'`--input` must name xz files that {_XZ_MEMORY_BYTES >> 20} MiB of '
          f'memory suffice to unpack, but {path!r} needs more. Unpack it, or '
          'pack it with gzip.'
        ) from drop
    elif start:
      yield start
      while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _repacking(path: str, format_name: str) -> str:
  """Returns what to do with a file of a format that is not read."""
  if format_name != '7z':
    return 'Unpack it, or pack it with gzip'
  # The new name keeps that of the site, which tells its users apart.
  name = posixpath.basename(path)
  packed = f'{name.removesuffix(".7z")}.xml.gz'
  command = f'7z e -so {shlex.quote(name)} Posts.xml | gzip > '
  return f'Unpack it: {command}{shlex.quote(packed)}'


def read_start(
  chunks: Iterator[bytes], num_bytes: int
) -> tuple[bytes, Drop | None]:
  """Returns the start of a file, and the damage that ends it, if any.

  It has `num_bytes` or, where pieces are longer, more; fewer only if the file
  ends before.
  """
  start, damage = bytearray(), None
  try:
    while len(start) < num_bytes and (chunk := next(chunks, b'')):
      start += chunk
  except Drop as drop:
    damage = drop
  return bytes(start), damage


def copy_chunks(chunks: Iterable[bytes], file: BinaryIO) -> Drop | None:
  """Writes pieces to a file, and returns the damage that ends them, if any.

  Once this returns, they can be read by the name of the file.

  Raises:
    OSError: If there is no room for them.
  """
  damage = None
  try:
    file.writelines(chunks)
  except Drop as drop:
    damage = drop
  file.flush()
  return damage


def _read_gzip(file: BinaryIO, data: bytes) -> Iterator[bytes]:
  """Like `_read_streams`, but with the exact place of a fault."""
  num_read = len(data)
  new_member = functools.partial(
    zlib_ng.decompressobj, wbits=16 + zlib_ng.MAX_WBITS
  )
  member = new_member()
  while data:
    # Costs nothing that can be measured beside the unpacking.
    before = member.copy()
    try:
      chunk = member.decompress(data, CHUNK_BYTES)
    except zlib_ng.error as error:
      rest, num_good = _salvage(before, data)
      if rest:
        yield rest
      byte = num_read - len(data) + num_good
      raise Drop('corrupt_file', damage=True, byte=byte) from error
    if chunk:
      yield chunk
    ended = member.eof
    data = member.unused_data.lstrip(b'\0') if ended else member.unconsumed_tail
    while not data and (data := file.read(_GZIP_READ_BYTES)):
      num_read += len(data)
      if ended:
        data = data.lstrip(b'\0')
    if ended and data:
      member = new_member()
  if not member.eof:
    raise Drop('truncated_file', damage=True, byte=num_read)


def _salvage(member: 'zlib_ng._Decompress', data: bytes) -> tuple[bytes, int]:
  """Returns what unpacks before the fault in the data, and its place."""
  pieces = []
  with contextlib.suppress(zlib_ng.error):
    for i in range(len(data)):
      pieces.append(member.decompress(data[i : i + 1]))
  return b''.join(pieces), len(pieces)


def _read_streams(
  file: BinaryIO,
  data: bytes,
  new_stream: Callable[[], Any],
  fault: type[Exception],
) -> Iterator[bytes]:
  """Yields what a file of one or more compressed streams holds.

  Args:
    file: The file behind `data`.
    data: Its first bytes.
    new_stream: Returns a decompressor of the interface that bz2 and lzma share.
    fault: What that raises if the data are corrupt.
  """
  num_read = len(data)
  start = 0
  stream = new_stream()
  while data or not stream.needs_input:
    try:
      chunk = stream.decompress(data, CHUNK_BYTES)
    except fault as error:
      raise Drop('corrupt_file', damage=True, byte=start) from error
    if chunk:
      yield chunk
    if not stream.eof and not stream.needs_input:
      data = b''
      continue
    data = stream.unused_data.lstrip(b'\0') if stream.eof else b''
    while not data and (data := file.read(_READ_BYTES)):
      num_read += len(data)
      if stream.eof:
        data = data.lstrip(b'\0')
    start = num_read - len(data)
    if stream.eof:
      if not data:
        return
      stream = new_stream()
  raise Drop('truncated_file', damage=True, byte=num_read)
