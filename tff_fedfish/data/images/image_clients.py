"""Clients that hold labelled images, all in memory."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from tff_fedfish.data import sequences as sequences_lib


@dataclasses.dataclass(frozen=True, eq=False)
class ImageRows(sequences_lib.Rows):
  """Labelled images of one client, as the rows of batches.

  A row has one target, its class, and counts as one token. `noise_seeds` is
  never None: it holds zeros outside of training and fine-tuning.
  """

  images: np.ndarray
  """uint8 [n, height, width, channels]."""
  labels: np.ndarray
  """int32 [n]."""

  def __len__(self) -> int:
    return len(self.labels)

  @property
  def num_tokens(self) -> int:
    """Number of images."""
    return len(self)

  def batch_features(self) -> collections.OrderedDict:
    """Returns x, images and seeds of their noise, and y, the labels.

    x also has `is_repeated` where that is not None.
    """
    x = collections.OrderedDict(image=self.images, noise_seed=self.noise_seeds)
    if self.is_repeated is not None:
      x['is_repeated'] = self.is_repeated
    return collections.OrderedDict(x=x, y=self.labels)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ImageClients(sequences_lib.ClientRows):
  """The clients of a corpus of images, a `Corpus`. Thread safe."""

  manifest: ClassVar[None] = None
  row_name: ClassVar[str] = 'images'

  images: np.ndarray
  """uint8 [n, height, width, channels]: the images of all clients."""
  labels: np.ndarray
  """int32 [n]: their classes, from 0 to num_classes - 1."""
  client_rows: Mapping[bytes, np.ndarray]
  """Client id -> int64 [num_examples]: its rows of both. No row has two
  clients; a row may have none. Clients without a row are left out."""
  num_classes: int
  """Classes that there are, whether or not a client has them."""
  held_out: tuple[bytes, ...] = ()
  """Clients that the corpus's own split holds out of training, sorted; ()
  where it has none."""
  class_names: tuple[bytes, ...] = ()
  """Names of the classes by label; () where the corpus gives none itself."""
  skipped: str = ''
  """How many files were not read, for a message; '' if all were."""
  twins: Mapping[bytes, bytes] | None = None
  """Client id -> the held-out client with test images like its own. None: the
  test split is not divided so."""

  def __post_init__(self):
    rows = {
      client_id: np.asarray(found, np.int64)
      for client_id, found in sorted(self.client_rows.items())
      if len(found)
    }
    held_out = tuple(i for i in sorted(self.held_out) if i in rows)
    object.__setattr__(self, 'client_rows', types.MappingProxyType(rows))
    object.__setattr__(self, 'held_out', held_out)

  @functools.cached_property
  def client_ids(self) -> list[bytes]:
    """All clients that have examples, held-out ones included, sorted."""
    return list(self.client_rows)

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels."""
    return self.images.shape[1:]

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of all clients' ids, labels and images.

    For each client in order: the id's length (8 bytes), the id, the number of
    examples (8 bytes), the labels as int32, all little-endian, the images'
    shape and the images.
    """
    hasher = hashlib.sha256()
    for client_id, rows in self.client_rows.items():
      hasher.update(len(client_id).to_bytes(8, 'little') + client_id)
      hasher.update(len(rows).to_bytes(8, 'little'))
      hasher.update(self.labels[rows].astype('<i4').tobytes())
      hasher.update(repr(self.image_shape).encode())
      hasher.update(self.images[rows].tobytes())
    return hasher.hexdigest()

  def sequences(self, client_id: bytes) -> ImageRows:
    """Returns all images of a client in the order of the corpus.

    Args:
      client_id: One of `client_ids`.

    Returns:
      A row for each image; copies, which the caller may change. Noise seeds
      are 0.

    Raises:
      KeyError: If there is no such client.
    """
    rows = self.client_rows[client_id]
    seeds = np.zeros((len(rows), 2), np.int32)
    return ImageRows(self.images[rows], self.labels[rows], noise_seeds=seeds)

  def training_sequences(
    self,
    client_id: bytes,
    *,
    shuffle_seed: int,
    round_num: int,
    **limits: int | bool | None,
  ) -> ImageRows:
    """Returns the images that a client trains on in one round.

    Their noise seeds differ from row to row, and are a function of
    (shuffle_seed, round_num, client_id) as their order is. See `ClientRows`.
    """
    rows = super().training_sequences(
      client_id, shuffle_seed=shuffle_seed, round_num=round_num, **limits
    )
    return sequences_lib.with_noise(rows, shuffle_seed, round_num, client_id)


def group_rows(client_ids: Iterable[bytes]) -> dict[bytes, np.ndarray]:
  """Returns the rows of each client, ascending.

  Args:
    client_ids: The client of every row.
  """
  rows = collections.defaultdict(list)
  for row, client_id in enumerate(client_ids):
    rows[client_id].append(row)
  return {client_id: np.array(found) for client_id, found in rows.items()}
