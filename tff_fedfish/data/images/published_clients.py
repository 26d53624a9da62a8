"""EMNIST by writer and CIFAR-100 by Pachinko client, as TFF publishes them.

EMNIST: Cohen et al. (2017), grouped by writer as in LEAF (Caldas et al., 2018).
Every writer is in both splits: what is held out are examples of the writers
who train. Pixels are those of TFF: 255 is the background, 0 the ink.

CIFAR-100: partitioned by Reddi et al. (2021), "Adaptive federated
optimization", appendix F, into 500 and 100 clients of 100 examples each.

Both are a SQLite database of all splits, packed by LZMA: the table `examples`
has a row per example, with `split_name`, `client_id` and
`serialized_example_proto`, a `tf.train.Example`
(tensorflow_federated/python/simulation/datasets/sql_client_data.py).
"""

import array
import collections
import contextlib
import lzma
import math
import os
import pathlib
import shutil
import sqlite3
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf import message

from tff_fedfish import files
from tff_fedfish.data import sqlite_files
from tff_fedfish.data.images.find_files import check_labels, find_files
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.data.protos import messages
from tff_fedfish.errors import UserError

_BUCKET = 'https://storage.googleapis.com/tff-datasets-public'
_LABEL = 'label'
_COPY_BYTES = 1 << 20

# Client id, uint8 image [height, width, channels], label.
_Example = tuple[bytes, np.ndarray, int]


class PublishedClients(NamedTuple):
  """Files of a corpus that TFF publishes by client."""

  corpus: str
  """One of `IMAGE_CORPORA`."""
  database: str
  """The SQLite database; packed it ends in `.lzma`."""
  splits: tuple[str, str]
  """Names of train and test in it."""
  image_feature: str
  """Holds the pixels: floats from 0 to 1 or ints from 0 to 255."""
  hint: str = ''
  """Sentence for users whose files are missing; begins with a space."""


EMNIST = PublishedClients(
  corpus='emnist_by_writer',
  database='emnist_all.sqlite',
  splits=('all_train', 'all_test'),
  image_feature='pixels',
)
"""3,400 writers; 671,585 and 77,483 digits and letters."""

FED_CIFAR100 = PublishedClients(
  corpus='cifar100',
  database='cifar100.sqlite',
  splits=('train', 'test'),
  image_feature='image',
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
    directory: Where the database lies. One that is still packed is unpacked
      beside its file.

  Returns:
    Clients of the train split under TFF's ids. Those of the test split are held
    out under `test-` and TFF's id, as TFF gives ids of the one to the other.

  Raises:
    UserError: If a file is missing or damaged, or holds something else.
  """
  (path,) = find_files(
    published.corpus,
    directory,
    [published.database],
    [f'{published.database}.lzma'],
    origin=f'Get {published.database}.lzma from {_BUCKET}.{published.hint}',
  )
  if path.suffix == '.lzma':
    path = _unpack_database(path)
  # One buffer that grows: lists of arrays would have to be copied once more.
  images, labels = bytearray(), array.array('i')
  rows = collections.defaultdict(lambda: array.array('q'))
  facts = IMAGE_CORPORA[published.corpus]
  layout = published.image_feature, facts.image_shape
  for split, prefix in zip(published.splits, (b'', b'test-'), strict=True):
    for client_id, image, label in _read_database(path, split, *layout):
      check_labels(np.array([label]), facts.num_classes, path)
      rows[prefix + client_id].append(len(labels))
      images += image.tobytes()
      labels.append(label)
  return ImageClients(
    images=np.frombuffer(images, np.uint8).reshape(-1, *facts.image_shape),
    labels=np.array(labels, np.int32),
    client_rows={
      client_id: np.array(found) for client_id, found in rows.items()
    },
    num_classes=facts.num_classes,
    held_out=tuple(
      client_id for client_id in rows if client_id.startswith(b'test-')
    ),
  )


def _unpack_database(packed: pathlib.Path) -> pathlib.Path:
  """Unpacks a database beside its packed file, as TFF's own loader does.

  The unpacked file, which is returned, appears whole or not at all.
  """
  unpacked = packed.with_suffix('')
  try:
    with (
      lzma.open(packed) as source,
      files.write_atomically(unpacked, 'wb') as target,
    ):
      shutil.copyfileobj(source, target, _COPY_BYTES)
  except (lzma.LZMAError, EOFError) as error:
    raise UserError(
      f'{str(packed)!r} must be a whole LZMA file, but it is not ({error}). '
      'Get it again.'
    ) from error
  except OSError as error:
    raise UserError(
      f'{str(packed)!r} must be unpacked to {unpacked.name!r} beside it, but '
      f'that failed ({error}). Unpack it with `xz --decompress --keep`, and '
      'name the directory that it is in then.'
    ) from error
  return unpacked


def _read_database(
  path: pathlib.Path,
  split_name: str,
  image_feature: str,
  image_shape: tuple[int, int, int],
) -> Iterator[_Example]:
  """Yields the examples of one split, one by one, as they were written."""
  if sqlite_files.is_database(path) and sqlite_files.is_cut_off(path):
    raise UserError(
      f'{str(path)!r} must have the {sqlite_files.read_sizes(path)[1]:,} bytes '
      f'that its header names, found {path.stat().st_size:,}. Get it again.'
    )
  num_rows = 0
  try:
    with contextlib.closing(_connect(path)) as connection:
      rows = connection.execute(
        'SELECT client_id, serialized_example_proto FROM examples '
        'WHERE split_name = ? ORDER BY rowid',
        (split_name,),
      )
      for client_id, serialized in rows:
        num_rows += 1
        where = f'{str(path)!r}, example {num_rows} of {split_name!r}'
        pixels, label = _parse(serialized, image_feature, where)
        yield (
          str(client_id).encode(),
          _to_image(pixels, image_shape, where),
          label,
        )
      if num_rows:
        return
      found = connection.execute('SELECT DISTINCT split_name FROM examples')
      names = sorted(str(name) for (name,) in found)
  except sqlite3.Error as error:
    raise UserError(
      f'{str(path)!r} must be a database with the table `examples` of TFF, but '
      f'it cannot be read as one ({error}). Get it again.'
    ) from error
  raise UserError(
    f'{str(path)!r} must hold examples of the split {split_name!r}, but it '
    f'holds {", ".join(map(repr, names)) or "none"}. Check which file it is.'
  )


def _connect(path: pathlib.Path) -> sqlite3.Connection:
  # Immutable: no locks and no files beside it, which may be a read-only place.
  name = urllib.parse.quote(str(path.resolve()))
  return sqlite3.connect(f'file:{name}?mode=ro&immutable=1', uri=True)


def _parse(
  serialized: bytes, image_feature: str, where: str
) -> tuple[np.ndarray, int]:
  """Returns the pixels, flat, and the label of a `tf.train.Example`."""
  try:
    features = messages().Example.FromString(serialized).features.feature
  except (message.DecodeError, TypeError) as error:
    raise UserError(
      f'{where}: must be a tf.train.Example, but it cannot be read as one. Get '
      'the file again.'
    ) from error
  for name in (image_feature, _LABEL):
    # Not by looking it up, which would add it.
    if name not in features:
      raise _lacks_feature(where, name, sorted(features))
  image = features[image_feature]
  if image.HasField('float_list'):
    pixels = np.array(image.float_list.value, np.float32)
  else:
    pixels = np.array(image.int64_list.value, np.int64)
  labels = features[_LABEL].int64_list.value
  if len(labels) != 1:
    raise UserError(
      f'{where}: `{_LABEL}` must be one int, but it is {len(labels)}. Get the '
      'file again.'
    )
  return pixels, labels[0]


def _to_image(
  pixels: np.ndarray, image_shape: tuple[int, int, int], where: str
) -> np.ndarray:
  """Returns flat pixels as uint8 [height, width, channels]."""
  if pixels.size != math.prod(image_shape):
    raise UserError(
      f'{where}: an image must have {" x ".join(map(str, image_shape))} '
      f'pixels, but it has {pixels.size}. Check which file it is.'
    )
  highest = 1 if pixels.dtype.kind == 'f' else 255
  # Not the other way round: a NaN must not pass.
  if not (pixels.min() >= 0 and pixels.max() <= highest):
    raise UserError(
      f'{where}: pixels must lie between 0 and {highest}, but they lie between '
      f'{pixels.min()} and {pixels.max()}. Check which file it is.'
    )
  if pixels.dtype.kind == 'f':
    pixels = np.rint(pixels * 255)
  return pixels.astype(np.uint8).reshape(image_shape)


def _lacks_feature(where: str, name: str, found: list[str]) -> UserError:
  return UserError(
    f'{where}: must have the feature {name!r}, but it has '
    f'{", ".join(map(repr, found)) or "none"}. Check which file it is.'
  )
