"""MNIST and its relatives: idx files, Fashion-MNIST, MNIST by writer.

An idx file (LeCun & Cortes) has two zero bytes, a byte for the type, a byte for
the number of dimensions, their sizes as big-endian int32, then the values in
the same order, row by row.

Yadav & Bottou (2019), "Cold case: the lost MNIST digits" (QMNIST), found for
every image of MNIST who wrote it. Their label files have a row of eight int32
per image: class, series of NIST forms, writer, digit, NIST class, two numbers
of the image, and a zero. Row i of the file for training is image i of MNIST's;
the one for testing goes on where MNIST's 10,000 images end.
"""

import os
import pathlib
import struct

import numpy as np

from tff_fedfish.data.images.find_files import (
  LabelledImages,
  check_labels,
  find_files,
  join,
  read_file,
)
from tff_fedfish.data.images.image_clients import ImageClients, group_rows
from tff_fedfish.errors import UserError

_NUM_CLASSES = 10
# Train and test, the images before their labels.
_FILES = (
  'train-images-idx3-ubyte',
  'train-labels-idx1-ubyte',
  't10k-images-idx3-ubyte',
  't10k-labels-idx1-ubyte',
)
_WRITER_FILES = ('qmnist-train-labels-idx2-int', 'qmnist-test-labels-idx2-int')
_CLASS_COLUMN, _WRITER_COLUMN, _NUM_COLUMNS = 0, 2, 8
_ORIGINS = {
  'fashion_mnist': 'Get them from '
  'https://github.com/zalandoresearch/fashion-mnist.',
  'mnist': 'Get them from https://yann.lecun.com/exdb/mnist.',
  'mnist_by_writer': 'Get the writers from '
  'https://github.com/facebookresearch/qmnist, the rest is MNIST.',
}
# Bytes for the types, and how values are stored.
_TYPES = {'uint8': (0x08, '>u1'), 'int32': (0x0C, '>i4')}


def read_mnist(
  corpus: str, directory: str | os.PathLike
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test) of MNIST or Fashion-MNIST (Xiao et al., 2017).

  Args:
    corpus: 'mnist' or 'fashion_mnist'.
    directory: Where the four files lie, packed by gzip or not.

  Returns:
    Images of 28 x 28 x 1 in ten classes; 60,000 and 10,000 as published.

  Raises:
    UserError: If a file is missing or damaged, or two do not fit together.
  """
  paths = find_files(corpus, directory, _FILES, _ORIGINS[corpus])
  return _read_side(*paths[:2]), _read_side(*paths[2:])


def read_mnist_by_writer(directory: str | os.PathLike) -> ImageClients:
  """Returns a client for each writer of MNIST.

  Args:
    directory: Where MNIST's four files and QMNIST's two label files lie, packed
      by gzip or not.

  Returns:
    Clients `writer-0123`. Those who wrote the images for testing are held out;
    as published 297 of 836, none of whom wrote images for training.

  Raises:
    UserError: If a file is missing or damaged, or the classes in the label
      files are not those of MNIST.
  """
  corpus = 'mnist_by_writer'
  *mnist, train_path, test_path = find_files(
    corpus, directory, _FILES + _WRITER_FILES, _ORIGINS[corpus]
  )
  train, test = _read_side(*mnist[:2]), _read_side(*mnist[2:])
  train_ids = _client_ids(train_path, train.labels)
  test_ids = _client_ids(test_path, test.labels)
  images, labels = join([train, test])
  return ImageClients(
    images=images,
    labels=labels,
    client_rows=group_rows(train_ids + test_ids),
    num_classes=_NUM_CLASSES,
    held_out=tuple(set(test_ids)),
  )


def read_idx(
  path: str | os.PathLike, *, dtype: str, num_dimensions: int
) -> np.ndarray:
  """Returns the array of an idx file, in the machine's byte order.

  Args:
    path: A plain file, or one packed by gzip, whatever its name is.
    dtype: Type of its values: 'uint8' or 'int32'.
    num_dimensions: Number of its dimensions.

  Raises:
    UserError: If the file is no such idx file, is damaged or cannot be read.
  """
  code, stored = _TYPES[dtype]
  data = read_file(path)
  header_bytes = 4 + 4 * num_dimensions
  header = data[:header_bytes]
  try:
    if header[:4] != bytes([0, 0, code, num_dimensions]):
      raise ValueError('it begins otherwise')
    sizes = struct.unpack(f'>{num_dimensions}I', header[4:])
    values = np.frombuffer(data, stored, offset=header_bytes).reshape(sizes)
  except (ValueError, struct.error) as error:
    raise UserError(
      f'{str(path)!r} must be an idx file of {dtype} in {num_dimensions} '
      'dimensions with as many values as its header says, found the header '
      f"'{header.hex(' ')}' in {len(data)} bytes. Check which file it is, or "
      'get it again.'
    ) from error
  return values.astype(dtype)


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
  check_labels(labels, _NUM_CLASSES, labels_path)
  return LabelledImages(images[..., np.newaxis], labels.astype(np.int32))


def _client_ids(path: pathlib.Path, labels: np.ndarray) -> list[bytes]:
  """Returns the id of each image's writer from a label file of QMNIST."""
  table = read_idx(path, dtype='int32', num_dimensions=2)[: len(labels)]
  if table.shape[1] != _NUM_COLUMNS or not np.array_equal(
    table[:, _CLASS_COLUMN], labels
  ):
    raise UserError(
      f'{str(path)!r} must hold a row of {_NUM_COLUMNS} values for each of the '
      f'{len(labels)} images of MNIST, with the same classes, but it does not. '
      'Check that the files belong together.'
    )
  return [b'writer-%04d' % writer for writer in table[:, _WRITER_COLUMN]]
