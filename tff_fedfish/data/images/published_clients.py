"""EMNIST by writer and CIFAR-100 by Pachinko client, as TFF publishes them.

EMNIST: Cohen et al. (2017), grouped by writer as in LEAF (Caldas et al., 2018).
Every writer is in both splits: what is held out are examples of the writers
who train. Pixels are those of TFF: 255 is the background, 0 the ink.

CIFAR-100: partitioned by Reddi et al. (2021), "Adaptive federated
optimization", appendix F, into 500 and 100 clients of 100 examples each.

Both are a SQLite database of all splits, published as packed by LZMA.
"""

import array
import math
import os

import numpy as np
from google.protobuf import message

from tff_fedfish.data import tff_sqlite
from tff_fedfish.data.images.find_files import find_files
from tff_fedfish.data.images.image_clients import ImageClients, group_rows
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA, ImageCorpus
from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

_BUCKET = 'https://storage.googleapis.com/tff-datasets-public'
_LABEL = 'label'
# By corpus: the database, its splits for training and testing, and the feature
# with the pixels, floats from 0 to 1 or ints from 0 to 255.
_DATABASES = {
  'emnist_by_writer': ('emnist_all.sqlite', 'all_train', 'all_test', 'pixels'),
  'cifar100': ('cifar100.sqlite', 'train', 'test', 'image'),
}


def read_published_clients(
  corpus: str, directory: str | os.PathLike
) -> ImageClients:
  """Returns the clients of a corpus that TFF publishes.

  All of it is held in memory, a byte per value: 590 MB of EMNIST, 180 MB of
  CIFAR-100.

  Args:
    corpus: 'emnist_by_writer', 3,400 writers; or 'cifar100', 500 and 100
      clients of 100 images each.
    directory: Where the unpacked database lies.

  Returns:
    Clients of the train split under TFF's ids. Those of the test split are held
    out under `test-` and TFF's id, as TFF gives ids of the one to the other.

  Raises:
    UserError: If the database is missing or damaged, or holds something else.
  """
  facts = IMAGE_CORPORA[corpus]
  database, train, test, feature = _DATABASES[corpus]
  packed = f'{database}.lzma'
  origin = f'Get {packed} from {_BUCKET}, and unpack it: `xz -dk {packed}`.'
  if facts.clients == 'either':
    origin += f' Without it {corpus!r} requires a `partition`.'
  (path,) = find_files(corpus, directory, [database], origin)
  # One buffer that grows: lists of arrays would have to be copied once more.
  images, labels, client_ids = bytearray(), array.array('i'), []
  for split, prefix in ((train, b''), (test, b'test-')):
    for row in tff_sqlite.read_rows(path, split_name=split):
      try:
        image, label = _parse(row.serialized, feature, facts)
      except (ValueError, TypeError, message.DecodeError) as error:
        raise UserError(
          f'{str(path)!r} must hold examples with `{feature}` of '
          f'{" x ".join(map(str, facts.image_shape))}, from 0 to 1 or 0 to '
          f'255, and one `{_LABEL}` from 0 to {facts.num_classes - 1}, but the '
          f'split {split!r} has another one. Check which file it is, or get it '
          'again.'
        ) from error
      images += image.tobytes()
      labels.append(label)
      client_ids.append(prefix + (row.client_id or b''))
  return ImageClients(
    images=np.frombuffer(images, np.uint8).reshape(-1, *facts.image_shape),
    labels=np.array(labels, np.int32),
    client_rows=group_rows(client_ids),
    num_classes=facts.num_classes,
    held_out=tuple(i for i in {*client_ids} if i.startswith(b'test-')),
  )


def _parse(
  serialized: bytes | None, feature: str, facts: ImageCorpus
) -> tuple[np.ndarray, int]:
  """Returns the pixels, uint8, and the label; may raise."""
  features = messages().Example.FromString(serialized).features.feature
  floats = features[feature].float_list.value
  pixels = np.array(features[feature].int64_list.value, np.int64)
  if floats:
    pixels = np.rint(np.array(floats, np.float32) * 255)
  (label,) = features[_LABEL].int64_list.value
  # Not the other way round: a NaN must not pass.
  if not (
    len(pixels) == math.prod(facts.image_shape)
    and 0 <= pixels.min() <= pixels.max() <= 255
    and 0 <= label < facts.num_classes
  ):
    raise ValueError('it has other values')
  return pixels.astype(np.uint8), label
