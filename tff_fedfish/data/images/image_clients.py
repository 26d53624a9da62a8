"""Clients that hold images: who they are, and what each has."""

import collections
import dataclasses
import functools
import hashlib
import types
from collections.abc import Iterable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ImageClients:
  """The clients of a corpus of images, which is held in memory."""

  images: np.ndarray
  """uint8 [n, height, width, channels]: the images of all clients."""
  labels: np.ndarray
  """int32 [n]: their classes, from 0 to num_classes - 1."""
  client_rows: Mapping[bytes, np.ndarray]
  """Client id -> int64 [num_examples]: its rows of both. No row has two
  clients; a row may have none. Clients without a row become
  `empty_clients`."""
  num_classes: int
  """Classes that there are, whether or not a client has them."""
  held_out: tuple[bytes, ...] = ()
  """Clients that the corpus's own split holds out of training, sorted; ()
  where it has none."""
  class_names: tuple[bytes, ...] = ()
  """Names of the classes by label; () where the corpus gives none itself."""
  skipped: str = ''
  """How many files were not read and why, in one line; '' if all were."""
  fingerprints_images: bool = False
  """Whether `fingerprint` covers the pixels as well."""
  empty_clients: tuple[bytes, ...] = dataclasses.field(init=False)
  """Clients to whom no example was assigned, sorted; not in `client_ids`."""

  def __post_init__(self):
    _check(self)
    rows = {
      client_id: np.asarray(found, np.int64)
      for client_id, found in sorted(self.client_rows.items())
    }
    values = dict(
      client_rows=types.MappingProxyType(
        {client_id: found for client_id, found in rows.items() if len(found)}
      ),
      held_out=tuple(i for i in sorted(self.held_out) if len(rows[i])),
      empty_clients=tuple(i for i, found in rows.items() if not len(found)),
    )
    for name, value in values.items():
      object.__setattr__(self, name, value)

  @functools.cached_property
  def client_ids(self) -> list[bytes]:
    """All clients that have examples, held-out ones included, sorted."""
    return list(self.client_rows)

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """Height, width and channels."""
    return self.images.shape[1:]

  @property
  def num_unassigned(self) -> int:
    """Images that no client has, such as what a partition drops."""
    return len(self.labels) - sum(map(len, self.client_rows.values()))

  def examples(self, client_id: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns what a client has, in the order of the corpus.

    Args:
      client_id: One of `client_ids`.

    Returns:
      (images, labels): uint8 [num_examples, height, width, channels] and int32
      [num_examples]; copies, which the caller may change.

    Raises:
      KeyError: If there is no such client.
    """
    rows = self.client_rows[client_id]
    return self.images[rows], self.labels[rows]

  def num_examples(self, client_id: bytes) -> int:
    """Returns how many examples a client has; KeyError where there is none."""
    return len(self.client_rows[client_id])

  def label_histograms(self) -> np.ndarray:
    """Returns int64 [clients, num_classes]: examples by client and class.

    The rows are in the order of `client_ids`.
    """
    return np.array(
      [
        np.bincount(self.labels[rows], minlength=self.num_classes)
        for rows in self.client_rows.values()
      ],
      np.int64,
    ).reshape(-1, self.num_classes)

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256, in hexadecimal, of all clients' ids, counts and labels.

    For each client in order: the id's length (8 bytes), the id, the number of
    examples (8 bytes) and the labels as int32, all little-endian; with
    `fingerprints_images` the images follow, after their shape.
    """
    hasher = hashlib.sha256()
    for client_id, rows in self.client_rows.items():
      hasher.update(len(client_id).to_bytes(8, 'little') + client_id)
      hasher.update(len(rows).to_bytes(8, 'little'))
      hasher.update(self.labels[rows].astype('<i4').tobytes())
      if self.fingerprints_images:
        hasher.update(repr(self.image_shape).encode())
        hasher.update(self.images[rows].tobytes())
    return hasher.hexdigest()


def group_rows(client_ids: Iterable[bytes]) -> dict[bytes, np.ndarray]:
  """Returns the rows of each client, ascending.

  Args:
    client_ids: The client of every row.
  """
  rows = collections.defaultdict(list)
  for row, client_id in enumerate(client_ids):
    rows[client_id].append(row)
  return {client_id: np.array(found) for client_id, found in rows.items()}


def _check(clients: ImageClients) -> None:
  """Raises ValueError if the fields do not fit together."""
  images, labels = clients.images, clients.labels
  if images.dtype != np.uint8 or images.ndim != 4:
    raise ValueError(
      '`images` must be uint8 [n, height, width, channels], found '
      f'{images.dtype} {list(images.shape)}.'
    )
  if labels.dtype != np.int32 or labels.shape != images.shape[:1]:
    raise ValueError(
      f'`labels` must be int32 [{len(images)}], found {labels.dtype} '
      f'{list(labels.shape)}.'
    )
  if (
    len(labels) and not 0 <= labels.min() <= labels.max() < clients.num_classes
  ):
    raise ValueError(
      f'`labels` must lie between 0 and {clients.num_classes - 1}, found '
      f'{labels.min()} to {labels.max()}.'
    )
  rows = np.concatenate(
    [
      np.empty(0, np.int64),
      *(np.asarray(rows, np.int64) for rows in clients.client_rows.values()),
    ]
  )
  if len(rows) and not 0 <= rows.min() <= rows.max() < len(labels):
    raise ValueError(
      f'`client_rows` must lie between 0 and {len(labels) - 1}, found '
      f'{rows.min()} to {rows.max()}.'
    )
  num_holders = np.bincount(rows)
  if num_holders.max(initial=0) > 1:
    raise ValueError(
      '`client_rows` must give no row to two clients or twice, but row '
      f'{num_holders.argmax()} is given {num_holders.max()} times.'
    )
  if unknown := sorted(set(clients.held_out) - set(clients.client_rows)):
    raise ValueError(
      f'`held_out` must name clients of `client_rows`, found {unknown[0]!r}.'
    )
