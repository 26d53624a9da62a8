"""Finds and reads the files of a corpus of images."""

import contextlib
import os
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedfish.errors import UserError

_OPTIONAL_GZ = '[.gz]'
_MAX_LISTED = 10


class LabelledImages(NamedTuple):
  """One side, train or test, of a corpus: images and their classes by row."""

  images: np.ndarray
  """uint8 [n, height, width, channels]."""
  labels: np.ndarray
  """int32 [n]; classes are numbered from 0."""


def find_files(
  corpus: str,
  directory: str | os.PathLike,
  *choices: Sequence[str],
  origin: str,
) -> list[pathlib.Path]:
  """Returns the files of the first choice of which none is missing.

  Args:
    corpus: The name that the user gave.
    directory: Where the files lie.
    *choices: Names relative to `directory`; each choice suffices. A name that
      ends in `[.gz]` stands for the file without and the file with `.gz`.
    origin: A sentence that says where to get the files.

  Raises:
    UserError: If every choice lacks a file; names what is required and what
      the directory holds.
  """
  directory = pathlib.Path(directory)
  for names in choices:
    paths = [_locate(directory, name) for name in names]
    if None not in paths:
      return paths
  required = ', or '.join(', '.join(names) for names in choices)
  raise UserError(
    f'Corpus {corpus!r} requires {required} in {str(directory)!r}, but '
    f'{_contents(directory)}. {origin}'
  )


@contextlib.contextmanager
def reading(path: str | os.PathLike) -> Iterator[None]:
  """Turns what a damaged or unreadable file raises into a UserError."""
  try:
    yield
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


def _locate(directory: pathlib.Path, name: str) -> pathlib.Path | None:
  plain = name.removesuffix(_OPTIONAL_GZ)
  for spelling in [plain] if plain == name else [plain, f'{plain}.gz']:
    if (directory / spelling).is_file():
      return directory / spelling
  return None


def _contents(directory: pathlib.Path) -> str:
  """Returns what the directory holds, as the end of a sentence."""
  try:
    names = sorted(entry.name for entry in directory.iterdir())
  except OSError as error:
    return f'the directory cannot be read ({error.strerror})'
  if not names:
    return 'the directory is empty'
  more = f' and {len(names) - _MAX_LISTED} more' * (len(names) > _MAX_LISTED)
  return f'found only {", ".join(names[:_MAX_LISTED])}{more}'
