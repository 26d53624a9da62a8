"""Opens the files of a grouped corpus; nothing else does."""

import os
import pathlib
from typing import BinaryIO


def open_file(directory: str | os.PathLike, name: str) -> BinaryIO:
  """Opens the manifest, the index or a shard to be read, with `seek`.

  Raises:
    OSError: If there is none, or it cannot be read.
  """
  return open(pathlib.Path(directory) / name, 'rb')


def size_of(directory: str | os.PathLike, name: str) -> int | None:
  """Returns the size of a file in bytes; None if there is none."""
  path = pathlib.Path(directory) / name
  return path.stat().st_size if path.is_file() else None
