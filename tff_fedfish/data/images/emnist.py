"""EMNIST by writer and CIFAR-100 by Pachinko client, as TFF publishes them.

EMNIST: Cohen et al. (2017), grouped by writer as in LEAF (Caldas et al., 2018).
Every writer is in both splits: what is held out are examples of the writers
who train. Pixels are those of TFF: 255 is the background, 0 the ink.

CIFAR-100: partitioned by Reddi et al. (2021), "Adaptive federated
optimization", appendix F, into 500 and 100 clients of 100 examples each.
"""

import array
import collections
import os
from typing import NamedTuple

import numpy as np

from tff_fedfish.data.images.corpus_files import check_labels, find_files
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.simulation_files import (
  read_database,
  read_hdf5,
  unpack_database,
)

_BUCKET = 'https://storage.googleapis.com/tff-datasets-public'


class PublishedClients(NamedTuple):
  """Files of a corpus that TFF publishes by client."""

  corpus: str
  database: str
  """The SQLite database; packed it ends in `.lzma`."""
  splits: tuple[str, str]
  """Names of train and test in it."""
  hdf5_files: tuple[str, str]
  """The files of train and test in the older format."""
  image_feature: str
  image_shape: tuple[int, int, int]
  num_classes: int
  hint: str = ''
  """Hint at files that the user may have meant where these are missing."""


EMNIST = PublishedClients(
  corpus='emnist_by_writer',
  database='emnist_all.sqlite',
  splits=('all_train', 'all_test'),
  hdf5_files=('fed_emnist_train.h5', 'fed_emnist_test.h5'),
  image_feature='pixels',
  image_shape=(28, 28, 1),
  num_classes=62,
)
"""3,400 writers; 671,585 and 77,483 digits and letters."""

FED_CIFAR100 = PublishedClients(
  corpus='cifar100',
  database='cifar100.sqlite',
  splits=('train', 'test'),
  hdf5_files=('fed_cifar100_train.h5', 'fed_cifar100_test.h5'),
  image_feature='image',
  image_shape=(32, 32, 3),
  num_classes=100,
  hint=' The plain CIFAR-100 requires a `partition`.',
)
"""500 and 100 clients of 100 examples each."""


def read_published_clients(
  published: PublishedClients, directory: str | os.PathLike
) -> ImageClients:
  """Returns the clients of a corpus that TFF publishes.

  All of it is held in memory, a byte per value: 590 MB of EMNIST, 180 MB of
  CIFAR-100.

  Args:
    published: `EMNIST` or `FED_CIFAR100`.
    directory: Where the database lies, or the two HDF5 files. A database that
      is still packed is unpacked beside its file.

  Returns:
    Clients of the train split under TFF's ids. Those of the test split are held
    out under `test-` and TFF's id, as TFF gives ids of the one to the other.

  Raises:
    UserError: If a file is missing or damaged, or holds something else.
  """
  paths = find_files(
    published.corpus,
    directory,
    [published.database],
    published.hdf5_files,
    [f'{published.database}.lzma'],
    origin=f'Get {published.database}.lzma from {_BUCKET}.{published.hint}',
  )
  if paths[0].suffix == '.lzma':
    paths = [unpack_database(paths[0])]
  # One buffer that grows: lists of arrays would have to be copied once more.
  images, labels = bytearray(), array.array('i')
  rows = collections.defaultdict(lambda: array.array('q'))
  layout = published.image_feature, published.image_shape
  for side, prefix in enumerate((b'', b'test-')):
    # A database holds both sides.
    path = paths[side % len(paths)]
    if len(paths) == 1:
      examples = read_database(path, published.splits[side], *layout)
    else:
      examples = read_hdf5(path, *layout)
    for client_id, client_images, client_labels in examples:
      check_labels(client_labels, published.num_classes, path)
      start = len(labels)
      images += client_images.tobytes()
      labels.extend(client_labels.tolist())
      rows[prefix + client_id].extend(range(start, len(labels)))
  return ImageClients(
    images=np.frombuffer(images, np.uint8).reshape(-1, *published.image_shape),
    labels=np.array(labels, np.int32),
    client_rows={
      client_id: np.array(found) for client_id, found in rows.items()
    },
    num_classes=published.num_classes,
    held_out=tuple(
      client_id for client_id in rows if client_id.startswith(b'test-')
    ),
  )
