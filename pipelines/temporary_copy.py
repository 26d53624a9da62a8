"""Copies what a packed file holds to one that can be read in any order."""

from collections.abc import Iterable
from typing import BinaryIO

from pipelines.source import Drop


def copy_chunks(chunks: Iterable[bytes], file: BinaryIO) -> Drop | None:
  """Writes the pieces to a file, and returns the damage that ends them, if any.

  Args:
    chunks: The pieces, as `raw_bytes.read_chunks` yields them.
    file: Where they go, such as a `tempfile.NamedTemporaryFile`. Once this
      returns, they can be read by its name.

  Raises:
    OSError: If there is no room for them.
  """
  damage = None
  try:
    for chunk in chunks:
      file.write(chunk)
  except Drop as drop:
    damage = drop
  file.flush()
  return damage
