"""Opens a corpus of images by name, by its own clients or by a partition."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from tff_fedfish.data.images import cifar, class_partitions, emnist, mnist
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_folder import read_image_folder
from tff_fedfish.data.images.label_histograms import label_histograms
from tff_fedfish.data.images.labelled_images import LabelledImages
from tff_fedfish.data.images.mnist_by_writer import read_mnist_by_writer
from tff_fedfish.data.images.partitions import Partition

_Reader = Callable[[str | os.PathLike], tuple[LabelledImages, LabelledImages]]

# Corpora to partition: how they are read, and how many classes they have.
_WITHOUT_CLIENTS: Mapping[str, tuple[_Reader, int]] = {
  'cifar10': (functools.partial(cifar.read_cifar, cifar.CIFAR10), 10),
  'cifar100': (functools.partial(cifar.read_cifar, cifar.CIFAR100), 100),
  'fashion_mnist': (mnist.read_fashion_mnist, mnist.NUM_CLASSES),
}
_WITH_CLIENTS = (
  'cifar100',
  'emnist_by_writer',
  'image_folder',
  'mnist_by_writer',
)

CORPORA = tuple(sorted({*_WITHOUT_CLIENTS, *_WITH_CLIENTS}))
"""Names that `open_image_clients` knows."""


def open_image_clients(
  name: str,
  directory: str | os.PathLike,
  *,
  partition: Partition | None = None,
  held_out: Literal['whole', 'matching'] | Partition = 'whole',
) -> ImageClients:
  """Opens a corpus of images and says which client has which.

  Args:
    name: One of `CORPORA`. Those by writer and image_folder have clients of
      their own; cifar100 has TFF's without a partition, and is the plain corpus
      with one; the others need a partition.
    directory: Where the corpus's files lie.
    partition: How the train split is divided among clients `client-0000` and so
      on; None: the corpus's own clients.
    held_out: With a partition, what becomes of the test split. 'whole': one
      held-out client `test` has all of it. 'matching': `test-0007` gets of each
      class what `client-0007` has of it in training, in proportion. A
      partition: it divides the test split too.

  Returns:
    The clients; those of the test split are `held_out`.

  Raises:
    UserError: If files are missing or damaged, or the partition does not fit
      the corpus.
    ValueError: If there is no such corpus, or the arguments do not fit each
      other.
  """
  _check_arguments(name, partition, held_out)
  if partition is not None:
    return _open_partitioned(name, directory, partition, held_out)
  if name == 'image_folder':
    return read_image_folder(directory)
  if name == 'mnist_by_writer':
    return read_mnist_by_writer(directory)
  if name == 'cifar100':
    return emnist.read_published_clients(emnist.FED_CIFAR100, directory)
  return emnist.read_published_clients(emnist.EMNIST, directory)


def _open_partitioned(
  name: str,
  directory: str | os.PathLike,
  partition: Partition,
  held_out: Literal['whole', 'matching'] | Partition,
) -> ImageClients:
  read, num_classes = _WITHOUT_CLIENTS[name]
  train, test = read(directory)

  def split(side: LabelledImages, by: Partition):
    return by.split(
      side.labels, num_classes=num_classes, coarse_labels=side.coarse_labels
    )

  parts = split(train, partition)
  rows = _named(b'client', parts)
  if isinstance(held_out, Partition):
    test_rows = _named(b'test', split(test, held_out))
  elif held_out == 'matching':
    histograms = label_histograms(train.labels, parts, num_classes)
    test_rows = _named(
      b'test',
      class_partitions.matching_split(
        test.labels, histograms, seed=partition.seed
      ),
    )
  else:
    test_rows = {b'test': np.arange(len(test.labels))}
  rows |= {
    client_id: found + len(train.labels)
    for client_id, found in test_rows.items()
  }
  return ImageClients(
    images=np.concatenate([train.images, test.images]),
    labels=np.concatenate([train.labels, test.labels]),
    client_rows=rows,
    num_classes=num_classes,
    held_out=tuple(test_rows),
  )


def _named(prefix: bytes, parts: list[np.ndarray]) -> dict[bytes, np.ndarray]:
  """Returns the parts by client id; ids sort as the clients are numbered."""
  width = max(4, len(str(len(parts) - 1)))
  return {
    b'%s-%0*d' % (prefix, width, number): rows
    for number, rows in enumerate(parts)
  }


def _check_arguments(
  name: str,
  partition: Partition | None,
  held_out: str | Partition,
) -> None:
  if name not in CORPORA:
    raise ValueError(
      f'the corpus must be one of {", ".join(CORPORA)}, found {name!r}. Change '
      'its name.'
    )
  if partition is None and name not in _WITH_CLIENTS:
    raise ValueError(
      f'corpus {name!r} requires a `partition`, as it has no clients of its '
      'own, but none is given. Give one.'
    )
  if partition is not None and name not in _WITHOUT_CLIENTS:
    raise ValueError(
      f'corpus {name!r} takes no `partition`, as it has clients of its own, '
      f'but {partition.scheme!r} is given. Leave it out.'
    )
  if not isinstance(held_out, Partition) and held_out not in (
    'whole',
    'matching',
  ):
    raise ValueError(
      "`held_out` must be 'whole', 'matching' or a partition, found "
      f'{held_out!r}. Change it.'
    )
  if partition is None and held_out != 'whole':
    raise ValueError(
      '`held_out` is read with a `partition` only, as clients of '
      f'{name!r} are held out by its own split. Leave it out.'
    )
