"""CIFAR-10 and CIFAR-100 in the binary version of Krizhevsky (2009).

A record is one byte of label (CIFAR-100: a coarse, then a fine one) and 3,072
of pixels: the 32 x 32 reds row by row, then the greens, then the blues.
"""

import os
import pathlib
from typing import NamedTuple

import numpy as np

from tff_fedfish.data.images.corpus_files import (
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


class CifarVersion(NamedTuple):
  """Files and labels of one of the two corpora."""

  name: str
  folder: str  # As the archive unpacks.
  train: tuple[str, ...]
  test: str
  num_classes: tuple[int, ...]  # Of each label in a record, the finest last.


CIFAR10 = CifarVersion(
  name='cifar10',
  folder='cifar-10-batches-bin',
  train=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
  test='test_batch.bin',
  num_classes=(10,),
)
CIFAR100 = CifarVersion(
  name='cifar100',
  folder='cifar-100-binary',
  train=('train.bin',),
  test='test.bin',
  num_classes=(20, 100),
)


def read_cifar(
  version: CifarVersion, directory: str | os.PathLike
) -> tuple[LabelledImages, LabelledImages]:
  """Returns (train, test).

  Args:
    version: `CIFAR10` or `CIFAR100`.
    directory: Where the unpacked files lie, or the folder that they were packed
      in.

  Returns:
    Images of 32 x 32 x 3; 50,000 and 10,000 as published.

  Raises:
    UserError: If a file is missing or damaged.
  """
  names = [*version.train, version.test]
  paths = find_files(
    version.name,
    directory,
    names,
    [f'{version.folder}/{name}' for name in names],
    origin=_ORIGIN,
  )
  *train, test = (
    _decode(_read(path), path, version.num_classes) for path in paths
  )
  return join(train), test


def _read(path: pathlib.Path) -> bytes:
  with reading(path):
    return path.read_bytes()


def _decode(
  data: bytes, path: pathlib.Path, num_classes: tuple[int, ...]
) -> LabelledImages:
  record_bytes = len(num_classes) + _PIXEL_BYTES
  if not data or len(data) % record_bytes:
    raise UserError(
      f'{str(path)!r} must hold whole records of {record_bytes} bytes, at '
      f'least one, but it holds {len(data)} bytes. Get it again.'
    )
  records = np.frombuffer(data, np.uint8).reshape(-1, record_bytes)
  labels = records[:, : len(num_classes)].astype(np.int32)
  for column, limit in enumerate(num_classes):
    check_labels(labels[:, column], limit, path)
  planes = records[:, len(num_classes) :].reshape(-1, 3, 32, 32)
  return LabelledImages(
    images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
    labels=labels[:, -1].copy(),
  )
