"""CIFAR-10 and CIFAR-100 in the binary version of Krizhevsky (2009).

A record is one byte of label (CIFAR-100: a coarse, then a fine one) and 3,072
of pixels: the 32 x 32 reds row by row, then the greens, then the blues.
"""

import os
import pathlib
import tarfile
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
  'Get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html.'
)


class CifarVersion(NamedTuple):
  """Files and labels of one of the two corpora."""

  name: str
  archive: str
  folder: str  # Within the archive.
  train: tuple[str, ...]
  test: str
  num_classes: tuple[int, ...]  # Of each label in a record, the finest last.


CIFAR10 = CifarVersion(
  name='cifar10',
  archive='cifar-10-binary.tar.gz',
  folder='cifar-10-batches-bin',
  train=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
  test='test_batch.bin',
  num_classes=(10,),
)
CIFAR100 = CifarVersion(
  name='cifar100',
  archive='cifar-100-binary.tar.gz',
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
    directory: Where the unpacked files lie, the folder that they were packed
      in, or the archive as its owner publishes it.

  Returns:
    Images of 32 x 32 x 3; 50,000 and 10,000 as published. Those of CIFAR-100
    have coarse labels.

  Raises:
    UserError: If a file is missing or damaged.
  """
  names = [*version.train, version.test]
  paths = find_files(
    version.name,
    directory,
    names,
    [f'{version.folder}/{name}' for name in names],
    [version.archive],
    origin=_ORIGIN,
  )
  if paths[0].name == version.archive:
    contents = _unpack(paths[0], [f'{version.folder}/{name}' for name in names])
    paths = [paths[0] / version.folder / name for name in names]
  else:
    contents = [_read(path) for path in paths]
  *train, test = (
    _decode(data, path, version.num_classes)
    for data, path in zip(contents, paths, strict=True)
  )
  return join(train), test


def _read(path: pathlib.Path) -> bytes:
  with reading(path):
    return path.read_bytes()


def _unpack(path: pathlib.Path, names: list[str]) -> list[bytes]:
  """Returns the contents of some files of an archive, in one pass over it."""
  contents = {}
  with reading(path), tarfile.open(path, 'r|gz') as archive:
    for member in archive:
      name = member.name.removeprefix('./')
      if name in names and member.isfile():
        contents[name] = archive.extractfile(member).read()
  if missing := [name for name in names if name not in contents]:
    raise UserError(
      f'{str(path)!r} must hold {", ".join(names)}, but it lacks '
      f'{", ".join(missing)}. Get it again.'
    )
  return [contents[name] for name in names]


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
    coarse_labels=labels[:, 0].copy() if len(num_classes) > 1 else None,
  )
