"""Reads the files in which TFF publishes its simulation corpora of images.

Until 2021 that was an HDF5 file per split: `examples/CLIENT/FEATURE` holds one
feature of all examples of a client. Since then it is a SQLite database of all
splits, packed by LZMA: the table `examples` has a row per example, with
`split_name`, `client_id` and `serialized_example_proto`, a `tf.train.Example`
(tensorflow_federated/python/simulation/datasets/sql_client_data.py).
"""

import contextlib
import lzma
import math
import pathlib
import shutil
import sqlite3
import urllib.parse
from collections.abc import Iterator

import numpy as np
from google.protobuf import message

from tff_fedfish import files
from tff_fedfish.data.example_protos import messages
from tff_fedfish.data.images.corpus_files import reading
from tff_fedfish.errors import UserError

Example = tuple[bytes, np.ndarray, np.ndarray]
"""Client id, uint8 images [n, height, width, channels], int32 labels [n]."""

_HDF5_GROUP = 'examples'
_LABEL = 'label'
_COPY_BYTES = 1 << 20


def unpack_database(packed: pathlib.Path) -> pathlib.Path:
  """Unpacks a database beside its packed file, as TFF's own loader does.

  Args:
    packed: The file, ending in `.lzma`.

  Returns:
    The unpacked file, which appears whole or not at all.

  Raises:
    UserError: If the file is damaged, or the directory cannot be written to.
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


def read_database(
  path: pathlib.Path,
  split_name: str,
  image_feature: str,
  image_shape: tuple[int, int, int],
) -> Iterator[Example]:
  """Yields the examples of one split, one by one, as they were written.

  Args:
    path: A database, not packed.
    split_name: The split, such as 'all_train'.
    image_feature: The feature that holds the pixels: floats from 0 to 1 or ints
      from 0 to 255.
    image_shape: Height, width and channels.

  Raises:
    UserError: If the file is damaged or no such database, if it lacks the
      split, or if an example is no image with a label.
  """
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
          _to_images(pixels[np.newaxis], image_shape, where),
          np.array([label], np.int32),
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


def read_hdf5(
  path: pathlib.Path,
  image_feature: str,
  image_shape: tuple[int, int, int],
) -> Iterator[Example]:
  """Yields all examples of each client, clients in the order of their ids.

  Args:
    path: The HDF5 file of one split.
    image_feature: As in `read_database`.
    image_shape: Height, width and channels.

  Raises:
    UserError: If the file is damaged or holds something else.
  """
  # 0.3 seconds that reading other formats should not wait for.
  import h5py

  with reading(path), h5py.File(path, 'r') as file:
    clients = file.get(_HDF5_GROUP)
    if not isinstance(clients, h5py.Group):
      raise UserError(
        f'{str(path)!r} must hold the group {_HDF5_GROUP!r}, but it holds '
        f'{", ".join(map(repr, file)) or "nothing"}. Check which file it is.'
      )
    for client_id, features in clients.items():
      where = f'{str(path)!r}, client {client_id!r}'
      for name in (image_feature, _LABEL):
        if name not in features:
          raise _lacks_feature(where, name, sorted(features))
      labels = features[_LABEL][()]
      images = _to_images(features[image_feature][()], image_shape, where)
      if labels.shape != (len(images),):
        raise UserError(
          f'{where} must hold a label for each of its {len(images)} images, '
          f'but holds {list(labels.shape)}. Get the file again.'
        )
      yield client_id.encode(), images, labels.astype(np.int32)


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


def _to_images(
  pixels: np.ndarray, image_shape: tuple[int, int, int], where: str
) -> np.ndarray:
  """Returns pixels [n, ...] as uint8 [n, height, width, channels]."""
  num_pixels = math.prod(image_shape)
  if pixels.size != len(pixels) * num_pixels:
    raise UserError(
      f'{where}: an image must have {" x ".join(map(str, image_shape))} '
      f'pixels, but it has {pixels.size // len(pixels)}. Check which file it '
      'is.'
    )
  highest = 1 if pixels.dtype.kind == 'f' else 255
  # Not the other way round: a NaN must not pass.
  if pixels.size and not (pixels.min() >= 0 and pixels.max() <= highest):
    raise UserError(
      f'{where}: pixels must lie between 0 and {highest}, but they lie between '
      f'{pixels.min()} and {pixels.max()}. Check which file it is.'
    )
  if pixels.dtype.kind == 'f':
    pixels = np.rint(pixels * 255)
  return pixels.astype(np.uint8).reshape(-1, *image_shape)


def _lacks_feature(where: str, name: str, found: list[str]) -> UserError:
  return UserError(
    f'{where}: must have the feature {name!r}, but it has '
    f'{", ".join(map(repr, found)) or "none"}. Check which file it is.'
  )
