"""Loads a corpus of images by name, by its own clients or by a partition."""

import functools
import os
from typing import Literal

import numpy as np

from tff_fedfish.data.images import cifar, folder, idx_files, partitions
from tff_fedfish.data.images.find_files import join
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.data.images.label_draws import label_histograms
from tff_fedfish.data.images.published_clients import read_published_clients

# What reads the two sides of a corpus that a partition divides.
_SIDES_READERS = {
  'cifar10': cifar.read_cifar,
  'cifar100': cifar.read_cifar,
  'fashion_mnist': idx_files.read_mnist,
  'mnist': idx_files.read_mnist,
}
# What reads a corpus with clients of its own.
_CLIENTS_READERS = {
  'cifar100': functools.partial(read_published_clients, 'cifar100'),
  'emnist_by_writer': functools.partial(
    read_published_clients, 'emnist_by_writer'
  ),
  'image_folder': folder.read_image_folder,
  'mnist_by_writer': idx_files.read_mnist_by_writer,
}


def load_image_corpus(
  name: str,
  directory: str | os.PathLike,
  *,
  partition: partitions.Partition | None = None,
  held_out: Literal['whole', 'matching'] = 'whole',
) -> ImageClients:
  """Loads a corpus of images and says which client has which.

  Args:
    name: One of `IMAGE_CORPORA`, which says whether a corpus has clients of its
      own, needs a partition, or may have one.
    directory: Where the corpus's files lie.
    partition: How the train split is divided among clients `client-0000` and so
      on. None: the corpus's own clients.
    held_out: With a partition, the use of the test split. 'whole': one held-out
      client `test` has all of it. 'matching': `test-0007` gets of each class
      what `client-0007` has of it in training, in proportion.

  Returns:
    The clients; those of the test split are `held_out`.

  Raises:
    UserError: If files are missing or damaged, or the partition does not fit
      the corpus.
    KeyError: If there is no such corpus with, or without, a partition.
  """
  if partition is None:
    return _CLIENTS_READERS[name](directory)
  train, test = _SIDES_READERS[name](name, directory)
  num_classes = IMAGE_CORPORA[name].num_classes
  parts = partition.divide(train.labels, num_classes=num_classes)
  train_rows = _named(b'client', parts)
  test_rows, twins = {b'test': np.arange(len(test.labels))}, None
  if held_out == 'matching':
    histograms = label_histograms(train.labels, parts, num_classes)
    test_rows = _named(
      b'test',
      partitions.matching_split(test.labels, histograms, seed=partition.seed),
    )
    twins = {
      client_id: twin
      for client_id, twin in zip(train_rows, test_rows, strict=True)
      if len(train_rows[client_id]) and len(test_rows[twin])
    }
  # Test images follow the others.
  test_rows = {i: rows + len(train.labels) for i, rows in test_rows.items()}
  images, labels = join([train, test])
  return ImageClients(
    images=images,
    labels=labels,
    client_rows=train_rows | test_rows,
    num_classes=num_classes,
    held_out=tuple(test_rows),
    twins=twins,
  )


def _named(prefix: bytes, parts: list[np.ndarray]) -> dict[bytes, np.ndarray]:
  """Returns the parts by client id; ids sort as the clients are numbered."""
  width = max(4, len(str(len(parts) - 1)))
  return {
    b'%s-%0*d' % (prefix, width, number): rows
    for number, rows in enumerate(parts)
  }
