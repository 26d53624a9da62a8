"""MNIST by the person who wrote the digits.

Yadav & Bottou (2019), "Cold case: the lost MNIST digits" (QMNIST), found for
every image of MNIST who wrote it. Their label files have a row of eight int32
per image: class, series of NIST forms, writer, digit, NIST class, two numbers
of the image, and a zero. Row i of the file for training is image i of MNIST's;
the one for testing goes on where MNIST's 10,000 images end.
"""

import os
import pathlib

import numpy as np

from tff_fedfish.data.images.corpus_files import find_files
from tff_fedfish.data.images.idx import read_idx
from tff_fedfish.data.images.image_clients import ImageClients, group_rows
from tff_fedfish.data.images.mnist import (
  FILES,
  NUM_CLASSES,
  read_mnist_files,
)
from tff_fedfish.errors import UserError

_WRITER_FILES = (
  'qmnist-train-labels-idx2-int[.gz]',
  'qmnist-test-labels-idx2-int[.gz]',
)
_CLASS_COLUMN, _WRITER_COLUMN, _NUM_COLUMNS = 0, 2, 8


def read_mnist_by_writer(directory: str | os.PathLike) -> ImageClients:
  """Returns a client for each writer of MNIST.

  Args:
    directory: Where MNIST's four files and QMNIST's two label files lie, packed
      by gzip or not.

  Returns:
    Clients `writer-0123`. Those who wrote the images for testing are held out;
    as published 297 of 836, none of whom wrote images for training.

  Raises:
    UserError: If a file is missing or damaged, if the classes in the label
      files are not those of MNIST, or if a writer is on both sides.
  """
  paths = find_files(
    'mnist_by_writer',
    directory,
    [*FILES, *_WRITER_FILES],
    origin='Get the writers from https://github.com/facebookresearch/qmnist, '
    'the rest is MNIST.',
  )
  train, test = read_mnist_files(paths[: len(FILES)])
  train_path, test_path = paths[len(FILES) :]
  train_ids = _client_ids(train_path, train.labels, paths[1])
  test_ids = _client_ids(test_path, test.labels, paths[3])
  held_out = set(test_ids)
  if both := sorted(held_out & set(train_ids)):
    raise UserError(
      f'{str(test_path)!r} must name other writers than {train_path.name!r}, '
      f'but both name {both[0].decode()}. Get both files again.'
    )
  return ImageClients(
    images=np.concatenate([train.images, test.images]),
    labels=np.concatenate([train.labels, test.labels]),
    client_rows=group_rows([*train_ids, *test_ids]),
    num_classes=NUM_CLASSES,
    held_out=tuple(held_out),
  )


def _client_ids(
  path: pathlib.Path, labels: np.ndarray, labels_path: pathlib.Path
) -> list[bytes]:
  """Returns the id of each image's writer.

  Args:
    path: A label file of QMNIST.
    labels: MNIST's labels of the images, int32 [n].
    labels_path: Where those come from.
  """
  rows = read_idx(path, dtype='int32', num_dimensions=2)
  if rows.shape[1] != _NUM_COLUMNS or len(rows) < len(labels):
    raise UserError(
      f'{str(path)!r} must hold {_NUM_COLUMNS} columns and a row for each of '
      f'the {len(labels)} labels in {labels_path.name!r}, but it holds '
      f'{rows.shape[1]} columns and {len(rows)} rows. Check that the two '
      'belong together.'
    )
  rows = rows[: len(labels)]
  different = np.flatnonzero(rows[:, _CLASS_COLUMN] != labels)
  if len(different):
    row = different[0]
    raise UserError(
      f'{str(path)!r} must agree with {labels_path.name!r} on every class, but '
      f'in row {row} it has {rows[row, _CLASS_COLUMN]} and not {labels[row]}. '
      'Check that the two belong together.'
    )
  return [b'writer-%04d' % writer for writer in rows[:, _WRITER_COLUMN]]
