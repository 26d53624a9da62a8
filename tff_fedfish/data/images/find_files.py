"""Finds and reads the files of a corpus of images."""

import gzip
import os
import pathlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_fedfish.errors import UserError

_GZIP_MAGIC = b'\x1f\x8b'


class LabelledImages(NamedTuple):
  """One side, train or test, of a corpus: images and their classes by row."""

  images: np.ndarray
  """uint8 [n, height, width, channels]."""
  labels: np.ndarray
  """int32 [n]; classes are numbered from 0."""


def find_files(
  corpus: str, directory: str | os.PathLike, names: Sequence[str], origin: str
) -> list[pathlib.Path]:
  """Returns the paths of a corpus's files, with `.gz` where they are packed.

  Args:
    corpus: The name that the user gave.
    directory: Where the files lie.
    names: Names without `.gz`.
    origin: A sentence that says where to get the files.

  Raises:
    UserError: If a file is missing.
  """
  paths = []
  for name in names:
    path = pathlib.Path(directory, name)
    if not os.path.isfile(path):
      path = path.with_name(f'{name}.gz')
    if not os.path.isfile(path):
      raise UserError(
        f'Corpus {corpus!r} requires {", ".join(names)} in '
        f'{str(directory)!r}, but {name} is not there. {origin}'
      )
    paths.append(path)
  return paths


def read_file(path: str | os.PathLike) -> bytes:
  """Returns the bytes of a file, unpacked if gzip packed it.

  Raises:
    UserError: If it is damaged or cannot be read.
  """
  try:
    data = pathlib.Path(path).read_bytes()
    return gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data
  except (OSError, EOFError, zlib.error) as error:
    raise UserError(
      f'{str(path)!r} must be a whole, readable file, but it is not ({error}). '
      'Get it again, or change its permissions.'
    ) from error


def check_labels(
  labels: np.ndarray, num_classes: int, path: str | os.PathLike
) -> None:
  """Raises UserError if a label is not one of 0 to num_classes - 1."""
  wrong = labels[(labels < 0) | (labels >= num_classes)]
  if len(wrong):
    raise UserError(
      f'{str(path)!r} must hold labels from 0 to {num_classes - 1}, but it '
      f'holds {wrong[0]}. Check which file it is.'
    )


def join(sides: Sequence[LabelledImages]) -> LabelledImages:
  """Returns the images of all sides, one after the other."""
  return LabelledImages(*map(np.concatenate, zip(*sides, strict=True)))
