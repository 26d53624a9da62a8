"""Files as they are stored: on this machine, or where Beam can reach them."""

from typing import BinaryIO


def is_remote(path: str) -> bool:
  """Says whether a path is not one of this machine's own file system."""
  return '://' in path


def open_stored(path: str) -> BinaryIO:
  """Opens a file for reading, without unpacking it.

  Args:
    path: A local or remote path that Beam's file systems can open.
  """
  from apache_beam.io import filesystem, filesystems

  return filesystems.FileSystems.open(
    path, compression_type=filesystem.CompressionTypes.UNCOMPRESSED
  )
