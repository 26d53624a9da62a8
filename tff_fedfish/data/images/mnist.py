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

import gzip
import math
import os
import pathlib
from typing import BinaryIO

import numpy as np

from tff_fedfish.data.images.corpus_files import (
  LabelledImages,
  check_labels,
  find_files,
  join,
  reading,
)
from tff_fedfish.data.images.image_clients import ImageClients, group_rows
from tff_fedfish.errors import UserError

_NUM_CLASSES = 10
# Train and test, the images before their labels.
_FILES = (
  'train-images-idx3-ubyte[.gz]',
  'train-labels-idx1-ubyte[.gz]',
  't10k-images-idx3-ubyte[.gz]',
  't10k-labels-idx1-ubyte[.gz]',
)
_WRITER_FILES = (
  'qmnist-train-labels-idx2-int[.gz]',
  'qmnist-test-labels-idx2-int[.gz]',
)
_CLASS_COLUMN, _WRITER_COLUMN, _NUM_COLUMNS = 0, 2, 8

_TYPES = {
  0x08: np.dtype('uint8'),
  0x09: np.dtype('int8'),
  0x0B: np.dtype('>i2'),
  0x0C: np.dtype('>i4'),
  0x0D: np.dtype('>f4'),
  0x0E: np.dtype('>f8'),
}
_MAGIC_BYTES = 4
_SIZE_BYTES = 4
_GZIP_MAGIC = b'\x1f\x8b'
_CHUNK_BYTES = 1 << 20


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
    _FILES,
    origin='Get them from https://github.com/zalandoresearch/fashion-mnist.',
  )
  return _read_sides(paths)


def read_mnist(
  directory: str | os.PathLike,
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test) of MNIST; see `read_fashion_mnist`.

  QMNIST's label files may lie beside its four.
  """
  paths = find_files(
    'mnist',
    directory,
    _FILES,
    origin='Get them from https://yann.lecun.com/exdb/mnist.',
  )
  return _read_sides(paths)


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
    [*_FILES, *_WRITER_FILES],
    origin='Get the writers from https://github.com/facebookresearch/qmnist, '
    'the rest is MNIST.',
  )
  train, test = _read_sides(paths[: len(_FILES)])
  train_path, test_path = paths[len(_FILES) :]
  train_ids = _client_ids(train_path, train.labels, paths[1])
  test_ids = _client_ids(test_path, test.labels, paths[3])
  held_out = set(test_ids)
  if in_both := sorted(held_out & set(train_ids)):
    raise UserError(
      f'{str(test_path)!r} must name other writers than {train_path.name!r}, '
      f'but both name {in_both[0].decode()}. Get both files again.'
    )
  both = join([train, test])
  return ImageClients(
    images=both.images,
    labels=both.labels,
    client_rows=group_rows([*train_ids, *test_ids]),
    num_classes=_NUM_CLASSES,
    held_out=tuple(held_out),
  )


def read_idx(
  path: str | os.PathLike, *, dtype: str, num_dimensions: int
) -> np.ndarray:
  """Returns the array of an idx file, in the machine's byte order.

  The file is plain or packed by gzip, whatever its name.

  Raises:
    UserError: If the file is no idx file, holds another type or another number
      of dimensions, ends too early or too late, or cannot be read.
  """
  with reading(path), open(path, 'rb') as file:
    is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    file.seek(0)
    if not is_packed:
      return _read_array(file, path, np.dtype(dtype), num_dimensions)
    with gzip.open(file) as unpacked:
      return _read_array(unpacked, path, np.dtype(dtype), num_dimensions)


def _read_sides(
  paths: list[pathlib.Path],
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test) of four files in the order of `_FILES`."""
  return _read_side(*paths[:2]), _read_side(*paths[2:])


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


def _client_ids(
  path: pathlib.Path, labels: np.ndarray, labels_path: pathlib.Path
) -> list[bytes]:
  """Returns the id of each image's writer from a label file of QMNIST.

  `labels` are those of the images, which MNIST's `labels_path` holds.
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


def _read_array(
  file: BinaryIO, path: str | os.PathLike, dtype: np.dtype, num_dimensions: int
) -> np.ndarray:
  magic = file.read(_MAGIC_BYTES)
  if (
    len(magic) < _MAGIC_BYTES or magic[:2] != b'\0\0' or magic[2] not in _TYPES
  ):
    raise UserError(
      f'{str(path)!r} must be an idx file, but it begins with the bytes '
      f"'{magic.hex(' ')}'. Check which file it is."
    )
  stored = _TYPES[magic[2]]
  if stored.newbyteorder('=') != dtype or magic[3] != num_dimensions:
    raise UserError(
      f'{str(path)!r} must hold {dtype} in {num_dimensions} dimensions, but it '
      f'holds {stored.newbyteorder("=")} in {magic[3]}. Check which file it is.'
    )
  header = file.read(_SIZE_BYTES * num_dimensions)
  if len(header) < _SIZE_BYTES * num_dimensions:
    raise UserError(
      f'{str(path)!r} must hold {num_dimensions} sizes, but it ends within '
      'them. Get the file again.'
    )
  sizes = tuple(int(size) for size in np.frombuffer(header, '>u4'))
  num_bytes = math.prod(sizes) * stored.itemsize
  # One byte more than there should be shows whether there is more.
  data = _read_up_to(file, num_bytes + 1)
  if len(data) != num_bytes:
    found = 'more' if len(data) > num_bytes else f'only {len(data)}'
    raise UserError(
      f'{str(path)!r} must hold {" x ".join(map(str, sizes))} values in '
      f'{num_bytes} bytes, as its header says, but it holds {found}. Get the '
      'file again.'
    )
  return np.frombuffer(data, stored).reshape(sizes).astype(dtype)


def _read_up_to(file: BinaryIO, num_bytes: int) -> bytearray:
  """Returns as many bytes, or all that there are."""
  # In pieces: a header that is wrong must not make us reserve what it says.
  data = bytearray()
  while len(data) < num_bytes:
    piece = file.read(min(_CHUNK_BYTES, num_bytes - len(data)))
    if not piece:
      break
    data += piece
  return data
