"""Loads a corpus of images by name, by its own clients or by a partition."""

import functools
import os
from typing import Literal

import numpy as np

from tff_fedfish.data.images import (
  cifar,
  corpus_files,
  label_draws,
  mnist,
  partition_schemes,
  published_clients,
)
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.data.images.image_folder import read_image_folder
from tff_fedfish.data.images.partitions import Partition

# How corpora are read that are to be partitioned, and those with clients.
_SIDES_READERS = {
  'cifar10': functools.partial(cifar.read_cifar, cifar.CIFAR10),
  'cifar100': functools.partial(cifar.read_cifar, cifar.CIFAR100),
  'fashion_mnist': mnist.read_fashion_mnist,
  'mnist': mnist.read_mnist,
}
_CLIENTS_READERS = {
  'cifar100': functools.partial(
    published_clients.read_published_clients, published_clients.FED_CIFAR100
  ),
  'emnist_by_writer': functools.partial(
    published_clients.read_published_clients, published_clients.EMNIST
  ),
  'image_folder': read_image_folder,
  'mnist_by_writer': mnist.read_mnist_by_writer,
}


def load_image_corpus(
  name: str,
  directory: str | os.PathLike,
  *,
  partition: Partition | None = None,
  held_out: Literal['whole', 'matching'] = 'whole',
) -> ImageClients:
  """Loads a corpus of images and says which client has which.

  Args:
    name: One of `IMAGE_CORPORA`, which says whether a corpus has clients of its
      own, needs a partition, or may have one.
    directory: Where the corpus's files lie.
    partition: How the train split is divided among clients `client-0000` and so
      on. None: the corpus's own clients.
    held_out: With a partition, what becomes of the test split. 'whole': one
      held-out client `test` has all of it. 'matching': `test-0007` gets of each
      class what `client-0007` has of it in training, in proportion.

  Returns:
    The clients; those of the test split are `held_out`.

  Raises:
    UserError: If files are missing or damaged, or the partition does not fit
      the corpus.
    ValueError: If there is no such corpus, or the arguments do not fit each
      other.
  """
  _check_arguments(name, partition, held_out)
  if partition is None:
    return _CLIENTS_READERS[name](directory)
  train, test = _SIDES_READERS[name](directory)
  both = corpus_files.join([train, test])
  num_classes = IMAGE_CORPORA[name].num_classes
  parts = partition.split(train.labels, num_classes=num_classes)
  train_rows = _named(b'client', parts)
  if held_out == 'matching':
    histograms = label_draws.label_histograms(train.labels, parts, num_classes)
    test_parts = partition_schemes.matching_split(
      test.labels, histograms, seed=partition.seed
    )
    test_rows = _named(b'test', test_parts)
    twins = {
      client_id: twin
      for client_id, twin in zip(train_rows, test_rows, strict=True)
      if len(train_rows[client_id]) and len(test_rows[twin])
    }
  else:
    test_rows, twins = {b'test': np.arange(len(test.labels))}, None
  test_rows = {i: found + len(train.labels) for i, found in test_rows.items()}
  rows = train_rows | test_rows
  return ImageClients(
    images=both.images,
    labels=both.labels,
    client_rows=rows,
    num_classes=num_classes,
    held_out=tuple(test_rows),
    clusters=_classes(rows, both.labels) if partition.is_by_class else None,
    twins=twins,
  )


def _classes(rows, labels) -> dict[bytes, int]:
  """Returns the class of each client whose images are all of one."""
  found = {client_id: np.unique(labels[of]) for client_id, of in rows.items()}
  return {i: int(of[0]) for i, of in found.items() if len(of) == 1}


def _named(prefix: bytes, parts: list[np.ndarray]) -> dict[bytes, np.ndarray]:
  """Returns the parts by client id; ids sort as the clients are numbered."""
  width = max(4, len(str(len(parts) - 1)))
  return {
    b'%s-%0*d' % (prefix, width, number): rows
    for number, rows in enumerate(parts)
  }


def _check_arguments(
  name: str, partition: Partition | None, held_out: str
) -> None:
  if name not in IMAGE_CORPORA:
    raise ValueError(
      f'the corpus must be one of {", ".join(sorted(IMAGE_CORPORA))}, found '
      f'{name!r}. Change its name.'
    )
  if partition is None and name not in _CLIENTS_READERS:
    raise ValueError(
      f'corpus {name!r} requires a `partition`, as it has no clients of its '
      'own, but none is given. Give one.'
    )
  if partition is not None and name not in _SIDES_READERS:
    raise ValueError(
      f'corpus {name!r} takes no `partition`, as it has clients of its own, '
      f'but {partition.scheme!r} is given. Leave it out.'
    )
  if held_out not in ('whole', 'matching'):
    raise ValueError(
      f"`held_out` must be 'whole' or 'matching', found {held_out!r}. Change "
      'it.'
    )
  if partition is None and held_out != 'whole':
    raise ValueError(
      '`held_out` is read only with a `partition`, as clients of '
      f'{name!r} are held out by its own split. Leave it out.'
    )
