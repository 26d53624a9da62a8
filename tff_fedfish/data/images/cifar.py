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
  reading,
)
from tff_fedfish.errors import UserError

_PIXEL_BYTES = 3 * 32 * 32
_ORIGIN = (
  'Get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html and '
  'unpack it.'
)
# By corpus: the folder that its archive unpacks to, its files, the last for
# testing, and the classes of each label of a record, the finest last.
_VERSIONS = {
  'cifar10': (
    'cifar-10-batches-bin',
    [*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'],
    (10,),
  ),
  'cifar100': ('cifar-100-binary', ['train.bin', 'test.bin'], (20, 100)),
}


def read_cifar(
  corpus: str, directory: str | os.PathLike
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test).

  Args:
    corpus: 'cifar10' or 'cifar100'.
    directory: Where the unpacked files lie, or their folder.

  Returns:
    Images of 32 x 32 x 3; 50,000 and 10,000 as published.

  Raises:
    UserError: If a file is missing or damaged.
  """
  folder, names, num_classes = _VERSIONS[corpus]
  in_folder = [f'{folder}/{name}' for name in names]
  paths = find_files(corpus, directory, names, in_folder, origin=_ORIGIN)
  *train, test = (_read_records(path, num_classes) for path in paths)
  return join(train), test


def _read_records(
  path: pathlib.Path, num_classes: tuple[int, ...]
) -> LabelledImages:
  with reading(path):
    data = path.read_bytes()
  num_labels = len(num_classes)
  record_bytes = num_labels + _PIXEL_BYTES
  if not data or len(data) % record_bytes:
    raise UserError(
      f'{str(path)!r} must hold whole records of {record_bytes} bytes, at '
      f'least one, but it holds {len(data)} bytes. Get it again.'
    )
  records = np.frombuffer(data, np.uint8).reshape(-1, record_bytes)
  labels = records[:, :num_labels].astype(np.int32)
  for column, limit in enumerate(num_classes):
    check_labels(labels[:, column], limit, path)
  planes = records[:, num_labels:].reshape(-1, 3, 32, 32)
  return LabelledImages(
    images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
    labels=labels[:, -1].copy(),
  )
