"""Reads one file out of a 7z archive as a stream.

py7zr writes what it unpacks to an object. Here it does so in a thread, and a
pipe hands the bytes to the reader, so that a file of any size takes little
memory and no room on disk.
"""

import contextlib
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import py7zr

from pipelines.input_files import open_stored
from pipelines.raw_bytes import CHUNK_BYTES
from pipelines.remote_files import StoreError
from pipelines.source import Drop
from tff_fedfish.errors import UserError

# Signature, version and a checksum of what follows: where behind this the list
# of files is, its length and its checksum.
_START = struct.Struct('<6sHIQQI')
_SHOWN_NAMES = 5


def read_member_chunks(path: str, wanted: str = 'Posts.xml') -> Iterator[bytes]:
  """Yields the content of one file of an archive, in pieces of at most 1 MiB.

  The archive may be remote. The file's name ends with `wanted`.

  Raises:
    Drop: truncated_file or corrupt_file, with `damage` set, after everything
      before the fault was yielded. An archive that was cut off has lost its
      list of files, and with it everything. `byte` is how far py7zr had read
      for what was yielded; for an archive cut off, how long it is.
    UserError: If the archive holds no such file or several, has a password, or
      is packed by a method that py7zr does not know.
  """
  with open_stored(path) as file:
    _check_size(file)
    member = _Member(file)
    with _faults(path, member), py7zr.SevenZipFile(file) as archive:
      if archive.needs_password():
        raise py7zr.PasswordRequired
      name = _find(archive, path, wanted)
      yield from member.chunks(archive, name)


class _Member:
  """Target of a file of an archive for py7zr: its writer and their factory."""

  def __init__(self, file: BinaryIO):
    self.num_bytes_read = 0
    self._file = file
    self._sink: BinaryIO | None = None
    self._error: Exception | None = None

  def chunks(self, archive: py7zr.SevenZipFile, name: str) -> Iterator[bytes]:
    """Yields the content; raises what py7zr raises."""
    read_end, write_end = os.pipe()
    thread = threading.Thread(
      target=self._extract, args=(archive, name, write_end), daemon=True
    )
    thread.start()
    try:
      # Closed also where the reader wants no more: that ends the writer.
      with open(read_end, 'rb') as source:
        while chunk := source.read(CHUNK_BYTES):
          yield chunk
    finally:
      thread.join()
    if self._error is not None:
      raise self._error

  def _extract(
    self, archive: py7zr.SevenZipFile, name: str, write_end: int
  ) -> None:
    try:
      with open(write_end, 'wb') as self._sink:
        archive.extract(targets=[name], factory=self)
    except Exception as error:
      self._error = error

  # What py7zr asks of a factory and of what it makes.

  def create(self, filename: str) -> '_Member':
    return self

  def write(self, data: bytes | bytearray) -> int:
    num_bytes = self._sink.write(data)
    self.num_bytes_read = self._file.tell()
    return num_bytes

  def seekable(self) -> bool:
    return False

  def close(self) -> None:
    pass


def _check_size(file: BinaryIO) -> None:
  """Raises `Drop` if the archive is shorter than its start says."""
  start = file.read(_START.size)
  file_bytes = file.seek(0, os.SEEK_END)
  expected_bytes = _START.size
  if len(start) == _START.size:
    _, _, checksum, offset, num_bytes, _ = _START.unpack(start)
    if checksum == zlib.crc32(start[12:]):
      expected_bytes += offset + num_bytes
  if file_bytes < expected_bytes:
    raise Drop('truncated_file', damage=True, byte=file_bytes)
  file.seek(0)


def _find(archive: py7zr.SevenZipFile, path: str, wanted: str) -> str:
  names = [info.filename for info in archive.list() if not info.is_directory]
  found = [name for name in names if name.endswith(wanted)]
  if len(found) == 1:
    return found[0]
  shown = found or names
  listed = ', '.join(map(repr, shown[:_SHOWN_NAMES])) or 'nothing'
  more = ', ...' if len(shown) > _SHOWN_NAMES else ''
  raise UserError(
    f'`--input` must name 7z archives that hold one file {wanted}, but '
    f'{path!r} holds {listed}{more}. '
    + ('Unpack it, and name the files.' if found else 'Leave it out.')
  )


@contextlib.contextmanager
def _faults(path: str, member: _Member) -> Iterator[None]:
  """Turns what py7zr raises into what `read_member_chunks` does."""
  try:
    yield
  except (Drop, UserError, StoreError, MemoryError):
    raise
  except py7zr.PasswordRequired as error:
    raise UserError(
      f'`--input` must name files that can be read, but {path!r} has a '
      'password. Unpack it, and name its Posts.xml.'
    ) from error
  except py7zr.UnsupportedCompressionMethodError as error:
    raise UserError(
      f'`--input` must name 7z archives that py7zr can unpack, but {path!r} is '
      'packed by another method. Unpack it, and name its Posts.xml.'
    ) from error
  except Exception as error:
    # Not only its own: what its parts meet in corrupt data is whatever they
    # raise. Where the file system fails, there is a number.
    if isinstance(error, OSError) and error.errno is not None:
      raise
    byte = member.num_bytes_read
    raise Drop('corrupt_file', damage=True, byte=byte) from error
