"""Client id to labelled images: what `ClientSequences` is for text."""

from __future__ import annotations

import collections

import numpy as np

from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.images.image_clients import ImageClients
from tff_fedfish.data.images.image_rows import ImageRows, batch_spec


class ClientImages:
  """The images of every client of a corpus. Thread safe."""

  def __init__(self, clients: ImageClients):
    """Holds the clients.

    Args:
      clients: The corpus, in memory.
    """
    self._clients = clients

  @property
  def element_spec(self) -> collections.OrderedDict:
    """The type of a batch, the same for every client."""
    return batch_spec(self._clients.image_shape)

  def sequences(self, client_id: bytes) -> ImageRows:
    """Returns all images of a client in the order of the corpus.

    Args:
      client_id: A client of the corpus.

    Returns:
      A row for each image; noise seeds are 0.

    Raises:
      KeyError: If the corpus has no such client.
    """
    images, labels = self._clients.examples(client_id)
    return ImageRows(images, labels, np.zeros((len(labels), 2), np.int32))

  def training_sequences(
    self,
    client_id: bytes,
    *,
    shuffle_seed: int,
    round_num: int,
    max_sequences: int | None = None,
    stream_length: int | None = None,
  ) -> ImageRows:
    """Returns the images that a client trains on in one round.

    Args:
      client_id: A client of the corpus.
      shuffle_seed: Seed of the order, and of the noise.
      round_num: The round; each has an order and noise of its own.
      max_sequences: See `sequences.rows_of_round`.
      stream_length: See `sequences.rows_of_round`.

    Returns:
      Rows in an order that is a function of (shuffle_seed, round_num,
      client_id), and so are the seeds of their noise, which differ from row to
      row. `num_dropped_sequences` counts what `max_sequences` cut off.

    Raises:
      KeyError: If the corpus has no such client.
    """
    rows = sequences_lib.rows_of_round(
      self.sequences(client_id),
      shuffle_seed=shuffle_seed,
      round_num=round_num,
      client_id=client_id,
      max_sequences=max_sequences,
      stream_length=stream_length,
    )
    return sequences_lib.with_noise(rows, shuffle_seed, round_num, client_id)
