"""EMNIST by writer and CIFAR-100 by Pachinko client, as TFF publishes them.

EMNIST: Cohen et al. (2017), grouped by writer as in LEAF (Caldas et al., 2018).
Every writer is in both splits: what is held out are examples of the writers
who train. Pixels are those of TFF: 255 is the background, 0 the ink.

CIFAR-100: partitioned by Reddi et al. (2021), "Adaptive federated
optimization", appendix F, into 500 and 100 clients of 100 examples each.

Both are a SQLite database of all splits, published as packed by LZMA.
"""

import array
import collections
import math
import os
import pathlib
from collections.abc import Iterator

import numpy as np
from google.protobuf import message

from tff_fedfish.data import tff_sqlite
from tff_fedfish.data.images.find_files import check_labels, find_files
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA, ImageCorpus
from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

_BUCKET = 'https://storage.googleapis.com/tff-datasets-public'
_LABEL = 'label'
# By corpus: the database, its splits for training and testing, and the feature
# with the pixels, floats from 0 to 1 or ints from 0 to 255.
_DATABASES = {
  'emnist_by_writer': (
    'emnist_all.sqlite',
    ('all_train', 'all_test'),
    'pixels',
  ),
  'cifar100': ('cifar100.sqlite', ('train', 'test'), 'image'),
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
  database, splits, image_feature = _DATABASES[corpus]
  packed = f'{database}.lzma'
  origin = f'Get {packed} from {_BUCKET}, and unpack it: `xz -dk {packed}`.'
  if facts.clients == 'either':
    origin += f' Without it {corpus!r} requires a `partition`.'
  (path,) = find_files(corpus, directory, [database], origin=origin)
  # One buffer that grows: lists of arrays would have to be copied once more.
  images, labels = bytearray(), array.array('i')
  client_rows = collections.defaultdict(lambda: array.array('q'))
  for split, prefix in zip(splits, (b'', b'test-'), strict=True):
    rows = _read_split(path, split, image_feature, facts)
    for client_id, image, label in rows:
      client_rows[prefix + client_id].append(len(labels))
      images += image.tobytes()
      labels.append(label)
  return ImageClients(
    images=np.frombuffer(images, np.uint8).reshape(-1, *facts.image_shape),
    labels=np.array(labels, np.int32),
    client_rows={
      client_id: np.array(found) for client_id, found in client_rows.items()
    },
    num_classes=facts.num_classes,
    held_out=tuple(
      client_id for client_id in client_rows if client_id.startswith(b'test-')
    ),
  )


def _read_split(
  path: pathlib.Path, split: str, image_feature: str, facts: ImageCorpus
) -> Iterator[tuple[bytes, np.ndarray, int]]:
  """Yields (client id, uint8 [height, width, channels], label)."""
  row_num = 0
  rows = tff_sqlite.read_rows(path, split_name=split)
  for row_num, row in enumerate(rows, start=1):
    try:
      image, label = _parse(row.serialized, image_feature, facts.image_shape)
    except (ValueError, TypeError, message.DecodeError) as error:
      raise UserError(
        f'{str(path)!r}, example {row_num} of {split!r}: must be a '
        f'tf.train.Example with `{image_feature}` of '
        f'{" x ".join(map(str, facts.image_shape))} and one `{_LABEL}`, but is '
        f'not ({error}). Check which file it is, or get it again.'
      ) from error
    check_labels(np.array([label]), facts.num_classes, path)
    yield row.client_id or b'', image, label
  if not row_num:
    raise UserError(
      f'{str(path)!r} must hold examples of the split {split!r}, but holds '
      'none. Check which file it is.'
    )


def _parse(
  serialized: bytes | None, image_feature: str, shape: tuple[int, int, int]
) -> tuple[np.ndarray, int]:
  """Returns uint8 [height, width, channels] and the label; may raise."""
  features = messages().Example.FromString(serialized).features.feature
  # Not by looking them up, which would add them.
  image = features[image_feature] if image_feature in features else None
  if image is not None and image.HasField('float_list'):
    pixels, highest = np.array(image.float_list.value, np.float32), 1
  else:
    values = image.int64_list.value if image is not None else ()
    pixels, highest = np.array(values, np.int64), 255
  if pixels.size != math.prod(shape):
    raise ValueError(f'`{image_feature}` has {pixels.size} values')
  # Not the other way round: a NaN must not pass.
  if not (pixels.min() >= 0 and pixels.max() <= highest):
    raise ValueError(
      f'values from {pixels.min()} to {pixels.max()}, not 0 to {highest}'
    )
  labels = features[_LABEL].int64_list.value if _LABEL in features else ()
  if len(labels) != 1:
    raise ValueError(f'`{_LABEL}` has {len(labels)} values')
  if highest == 1:
    pixels = np.rint(pixels * 255)
  return pixels.astype(np.uint8).reshape(shape), labels[0]
