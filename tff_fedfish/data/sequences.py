"""A client's documents as fixed-length blocks of token ids."""

from __future__ import annotations

import collections
import dataclasses
import typing
from collections.abc import Iterable
from typing import Any, Self, TypeVar

import numpy as np

from tff_fedfish.data import randomness

if typing.TYPE_CHECKING:
  import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Rows:
  """A client's examples for training or scoring, row by row of a batch.

  Sequences of tokens here, images in `images/image_clients.py`. A subclass adds
  arrays with an entry per row.
  """

  noise_seeds: np.ndarray | None = None
  """int32 [num_rows, 2]; seeds of the noise of images. None: rows of text."""
  is_repeated: np.ndarray | None = None
  """bool [num_rows]; whether a row came before in the same round. None: batches
  do not say."""
  num_dropped_sequences: int = 0
  """Rows that `take` cut off."""
  num_dropped_tokens: int = 0
  """Real tokens in the rows that `take` cut off."""

  def __len__(self) -> int:
    raise NotImplementedError

  @property
  def num_tokens(self) -> int:
    """Real tokens in all rows; an image counts as one."""
    raise NotImplementedError

  def num_tokens_at(self, index: np.ndarray) -> int:
    """Returns the real tokens in some rows, without reading them."""
    return self.select(index).num_tokens

  @property
  def num_lost_tokens(self) -> int:
    """Tokens of the client that are in no row, whatever the reason."""
    return self.num_dropped_tokens

  def batch_features(self) -> collections.OrderedDict[str, Any]:
    """Returns x and y of one batch with all rows, as arrays."""
    raise NotImplementedError

  def select(self, index: slice | np.ndarray) -> Self:
    """Returns some rows, with the counts as they are.

    Args:
      index: A slice, or the rows' numbers in the new order.
    """
    arrays = {
      field.name: value[index]
      for field in dataclasses.fields(self)
      if isinstance(value := getattr(self, field.name), np.ndarray)
    }
    return dataclasses.replace(self, **arrays)


AnyRows = TypeVar('AnyRows', bound=Rows)


class ClientRows:
  """The rows of every client of a corpus, of text or of images. Thread safe."""

  def sequences(self, client_id: bytes) -> Rows:
    """Returns all rows of a client in the order of the corpus.

    Raises:
      KeyError: If there is no such client.
      UserError: If its examples cannot be read.
    """
    raise NotImplementedError

  def num_training_rows(self, client_id: bytes) -> int:
    """Returns how many rows of a client a round chooses from."""
    return len(self._selectable(client_id))

  def training_sequences(
    self,
    client_id: bytes,
    *,
    shuffle_seed: int,
    round_num: int,
    max_sequences: int | None = None,
    stream_length: int | None = None,
    full_batches_of: int | None = None,
    repeats_rows: bool = False,
  ) -> Rows:
    """Returns the rows that a client trains on in one round.

    Args:
      client_id: The client.
      shuffle_seed: Seed of the order.
      round_num: The round, counted from 1; each has an order of its own.
      max_sequences: Rows to keep, at most, after the round's shuffle. None:
        all.
      stream_length: Rows that the round takes instead from the client's stream
        of passes, see `randomness.stream_rows`; they have `is_repeated`. None:
        the round is one pass.
      full_batches_of: Rows of a batch: their number becomes a multiple of it,
        at most `max_sequences`. None: the last batch may be smaller.
      repeats_rows: Repeats a client's rows until there are `max_sequences`, so
        that all clients have equally many. A repeated row counts again.

    Returns:
      Rows in an order that is a function of (shuffle_seed, round_num,
      client_id). Their dropped counts say what `max_sequences` cut off.

    Raises:
      KeyError: If there is no such client.
      UserError: If its examples cannot be read.
    """
    purposes = dict(shuffle_seed=shuffle_seed, client_id=client_id)
    if stream_length is not None:
      rows = self._selectable(client_id)
      order, is_repeated = randomness.stream_rows(
        len(rows), stream_length, round_num=round_num, **purposes
      )
      return dataclasses.replace(rows.select(order), is_repeated=is_repeated)
    rows, order = self._shuffled(round_num, max_sequences, **purposes)
    if repeats_rows and len(order):
      order = np.resize(order, max_sequences)
    order = order[:max_sequences]
    if full_batches_of is not None:
      order = order[: len(order) // full_batches_of * full_batches_of]
    kept = rows.select(order)
    # The first pass over the rows: those that were not dropped, each once.
    distinct = kept.select(slice(len(rows)))
    return dataclasses.replace(
      kept,
      num_dropped_sequences=(
        rows.num_dropped_sequences + len(rows) - len(distinct)
      ),
      num_dropped_tokens=(
        rows.num_dropped_tokens + rows.num_tokens - distinct.num_tokens
      ),
    )

  def _shuffled(
    self,
    round_num: int,
    max_sequences: int | None,
    *,
    shuffle_seed: int,
    client_id: bytes,
  ) -> tuple[Rows, np.ndarray]:
    """Returns rows, more than `max_sequences` if there are, and their order."""
    rows = self._selectable(client_id)
    return rows, randomness.permutation(
      len(rows),
      pass_num=round_num,
      shuffle_seed=shuffle_seed,
      client_id=client_id,
    )

  def _selectable(self, client_id: bytes) -> Rows:
    """Returns all rows of a client; `select` may be what reads them."""
    return self.sequences(client_id)


@dataclasses.dataclass(frozen=True, eq=False)
class Sequences(Rows):
  """Token sequences of one client, and a count of what was cut from them.

  A sequence of n + 1 tokens has n next-token targets. Rows shorter than the
  block are padded at the end; `num_targets` says how much of a row is real.
  """

  tokens: np.ndarray
  """int32 [num_sequences, sequence_length + 1]."""
  num_targets: np.ndarray
  """int32 [num_sequences], 1 to sequence_length."""
  num_short_block_tokens: int = 0
  """Tokens of a last block that was dropped because it was too short."""

  def __len__(self) -> int:
    return len(self.tokens)

  @property
  def num_tokens(self) -> int:
    """Real tokens, the first of each sequence included."""
    return int(self.num_targets.sum(dtype=np.int64)) + len(self)

  @property
  def num_lost_tokens(self) -> int:
    """Tokens in sequences that were cut off, and of a dropped last block."""
    return self.num_dropped_tokens + self.num_short_block_tokens

  def count(self, token_id: int) -> int:
    """Returns how many of the real tokens are `token_id`."""
    is_real = np.arange(self.tokens.shape[1]) <= self.num_targets[:, np.newaxis]
    return int(np.count_nonzero(is_real & (self.tokens == token_id)))

  def batch_features(self) -> collections.OrderedDict[str, Any]:
    """Returns x, the tokens, and y, the numbers of targets.

    With `is_repeated` x is a mapping of `tokens` and `is_repeated`.
    """
    x = self.tokens
    if self.is_repeated is not None:
      x = collections.OrderedDict(tokens=x, is_repeated=self.is_repeated)
    return collections.OrderedDict(x=x, y=self.num_targets)


def build_sequences(
  documents: Iterable[np.ndarray],
  *,
  sequence_length: int,
  end_of_text_id: int,
  padding_id: int,
  drop_short_block: bool = False,
) -> Sequences:
  """Joins documents with the end token and cuts them into equal blocks.

  The end token follows every document, the last one too. Blocks of
  `sequence_length + 1` tokens do not overlap.

  Args:
    documents: Token ids of each document, integer [num_tokens]; may be empty.
    sequence_length: Next-token targets in a full sequence, at least 1.
    end_of_text_id: The id that ends a document.
    padding_id: The id that fills up the last, shorter block.
    drop_short_block: Drop the last, shorter block instead of padding it, the
      rule of Charles et al. (2023) and Dhawan et al. (2024).

  Returns:
    The sequences in document order. A last block of a single token has no
    target and is always dropped; `num_short_block_tokens` counts what was.
  """
  end = np.array([end_of_text_id], np.int32)
  pieces = [piece for document in documents for piece in (document, end)]
  stream = np.concatenate([np.empty(0, np.int32), *pieces]).astype(np.int32)
  block_length = sequence_length + 1
  num_full, num_left = divmod(len(stream), block_length)
  full_tokens = num_full * block_length
  if num_left < 2 or drop_short_block:
    return Sequences(
      tokens=stream[:full_tokens].reshape(num_full, block_length),
      num_targets=np.full(num_full, sequence_length, np.int32),
      num_short_block_tokens=num_left,
    )
  padding = np.full(block_length - num_left, padding_id, np.int32)
  num_targets = np.full(num_full + 1, sequence_length, np.int32)
  num_targets[-1] = num_left - 1
  return Sequences(
    tokens=np.concatenate([stream, padding]).reshape(-1, block_length),
    num_targets=num_targets,
  )


def take(rows: AnyRows, max_sequences: int | None) -> AnyRows:
  """Returns the first `max_sequences` rows and counts the rest.

  Args:
    rows: What to take from.
    max_sequences: At least 0, or None for no limit.

  Returns:
    Rows whose dropped counts include those that were cut here.
  """
  if max_sequences is None or max_sequences >= len(rows):
    return rows
  cut = rows.select(slice(max_sequences, None))
  return dataclasses.replace(
    rows.select(slice(max_sequences)),
    num_dropped_sequences=rows.num_dropped_sequences + len(cut),
    num_dropped_tokens=rows.num_dropped_tokens + cut.num_tokens,
  )


def with_noise(
  rows: AnyRows, seed: int, round_num: int, client_id: bytes
) -> AnyRows:
  """Returns the rows with the seeds that a client draws from in a round.

  They are those of `randomness.noise_seeds`; outside of training `round_num`
  is 0.
  """
  seeds = randomness.noise_seeds(seed, round_num, client_id, len(rows))
  return dataclasses.replace(rows, noise_seeds=seeds)


def to_dataset(rows: Rows, batch_size: int) -> tf.data.Dataset:
  """Returns the rows as a dataset of batches, in their order.

  Args:
    rows: At least 0 of them; none gives a dataset of no batches.
    batch_size: Rows of a batch, at least 1. A last, smaller batch is kept.

  Returns:
    A dataset of `OrderedDict(x, y)` whose `element_spec` is the same for every
    client; of sequences x is int32 [None, sequence_length + 1], y int32 [None].
  """
  import tensorflow as tf

  options = tf.data.Options()
  # There is nothing to tune, and every pass would end by waiting for the tuner:
  # up to half a second without any work.
  options.autotune.enabled = False
  # Ends up as an input of the dataset's op, not as a constant of a graph.
  features = rows.batch_features()
  dataset = tf.data.Dataset.from_tensor_slices(features).batch(batch_size)
  return dataset.with_options(options)
