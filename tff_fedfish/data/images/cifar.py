"""CIFAR-10 and CIFAR-100 in the binary version of Krizhevsky (2009).

A record is one byte of label (CIFAR-100: a coarse, then a fine one) and 3,072
of pixels: the 32 x 32 reds row by row, then the greens, then the blues.
"""

import os
import pathlib

import numpy as np

from tff_fedfish.data.images.find_files import (
  LabelledImages,
  check_labels,
  find_files,
  join,
  read_file,
)
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.errors import UserError

_PIXEL_BYTES = 3 * 32 * 32
_ORIGIN = (
  'Get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html, '
  'unpack it, and name the directory with these files.'
)
# By corpus: the files, the last for testing, and the labels of a record.
_VERSIONS = {
  'cifar10': (
    [*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'],
    1,
  ),
  'cifar100': (['train.bin', 'test.bin'], 2),
}


def read_cifar(
  corpus: str, directory: str | os.PathLike
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test).

  Args:
    corpus: 'cifar10' or 'cifar100'.
    directory: Where the unpacked files lie.

  Returns:
    Images of 32 x 32 x 3; 50,000 and 10,000 as published.

  Raises:
    UserError: If a file is missing or damaged.
  """
  names, num_labels = _VERSIONS[corpus]
  paths = find_files(corpus, directory, names, _ORIGIN)
  num_classes = IMAGE_CORPORA[corpus].num_classes
  *train, test = (
    _read_records(path, num_labels, num_classes) for path in paths
  )
  return join(train), test


def _read_records(
  path: pathlib.Path, num_labels: int, num_classes: int
) -> LabelledImages:
  data = read_file(path)
  record_bytes = num_labels + _PIXEL_BYTES
  if not data or len(data) % record_bytes:
    raise UserError(
      f'{str(path)!r} must hold whole records of {record_bytes} bytes, at '
      f'least one, but it holds {len(data)} bytes. Get it again.'
    )
  records = np.frombuffer(data, np.uint8).reshape(-1, record_bytes)
  # The finest label is the last.
  labels = records[:, num_labels - 1].astype(np.int32)
  check_labels(labels, num_classes, path)
  planes = records[:, num_labels:].reshape(-1, 3, 32, 32)
  images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
  return LabelledImages(images, labels)
