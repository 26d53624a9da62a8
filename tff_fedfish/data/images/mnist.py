"""MNIST's four files, which Fashion-MNIST has too."""

import os
import pathlib

import numpy as np

from tff_fedfish.data.images.corpus_files import check_labels, find_files
from tff_fedfish.data.images.idx import read_idx
from tff_fedfish.data.images.labelled_images import LabelledImages
from tff_fedfish.errors import UserError

NUM_CLASSES = 10

FILES = (
  'train-images-idx3-ubyte[.gz]',
  'train-labels-idx1-ubyte[.gz]',
  't10k-images-idx3-ubyte[.gz]',
  't10k-labels-idx1-ubyte[.gz]',
)
"""Train and test, the images before their labels."""


def read_fashion_mnist(
  directory: str | os.PathLike,
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test) of Fashion-MNIST (Xiao et al., 2017).

  Args:
    directory: Where the four files lie, packed by gzip or not.

  Returns:
    Images of 28 x 28 x 1 in ten classes; 60,000 and 10,000 as published.

  Raises:
    UserError: If a file is missing or damaged, or two do not fit together.
  """
  paths = find_files(
    'fashion_mnist',
    directory,
    FILES,
    origin='Get them from https://github.com/zalandoresearch/fashion-mnist.',
  )
  return read_mnist_files(paths)


def read_mnist_files(
  paths: list[pathlib.Path],
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test) of four idx files.

  Args:
    paths: In the order of `FILES`.

  Raises:
    UserError: If one is damaged, or labels do not fit their images.
  """
  train_images, train_labels, test_images, test_labels = paths
  return (
    _read_side(train_images, train_labels),
    _read_side(test_images, test_labels),
  )


def _read_side(
  images_path: pathlib.Path, labels_path: pathlib.Path
) -> LabelledImages:
  images = read_idx(images_path, dtype='uint8', num_dimensions=3)
  labels = read_idx(labels_path, dtype='uint8', num_dimensions=1)
  if len(images) != len(labels):
    raise UserError(
      f'{str(labels_path)!r} must hold a label for each of the {len(images)} '
      f'images in {images_path.name!r}, but it holds {len(labels)}. Check that '
      'the two belong together.'
    )
  check_labels(labels, NUM_CLASSES, labels_path)
  return LabelledImages(images[..., np.newaxis], labels.astype(np.int32))
