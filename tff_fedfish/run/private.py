"""Batches of a client that trains by DP-SGD, and their number."""

import collections
import dataclasses
import typing

import numpy as np

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import randomness
from tff_fedfish.data.sequences import Rows
from tff_fedfish.rounds.privacy import sampling_rate

if typing.TYPE_CHECKING:
  import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateRounds:
  """How clients take rows in a round of DP-SGD."""

  seed: int
  """`seeds.privacy_seed`."""
  batch_size: int
  num_epochs: int
  num_local_steps: int | None
  max_rows: int | None
  """Rows of a pass, at most; None: all."""
  draws_batches: bool

  def num_pass_steps(self, num_rows: int) -> int:
    """Returns the steps of a pass over some rows: full batches."""
    if self.num_local_steps is not None:
      return self.num_local_steps if num_rows else 0
    return min(num_rows, self.max_rows or num_rows) // self.batch_size

  def num_steps(self, num_rows: int) -> int:
    """Returns the steps of a round of a client with some rows."""
    return self.num_epochs * self.num_pass_steps(num_rows)

  def batches(
    self, num_rows: int, round_num: int, client_id: bytes
  ) -> list[np.ndarray]:
    """Draws the rows of every step, int64 and ascending.

    A step takes each row with the probability B / n, by itself, so that it has
    B rows on average, and may have none.
    """
    draw = randomness.generator(
      'private_batches', self.seed, round_num, client_id
    )
    rate = sampling_rate(self.batch_size, max(1, num_rows))
    return [
      np.flatnonzero(draw.random_sample(num_rows) < rate)
      for _ in range(self.num_steps(num_rows))
    ]

  def to_dataset(
    self, rows: Rows, round_num: int, client_id: bytes
  ) -> 'tf.data.Dataset':
    """Returns the drawn batches of all steps as a dataset."""
    import tensorflow as tf

    drawn = self.batches(len(rows), round_num, client_id)
    limits = np.cumsum([0, *map(len, drawn)])
    index = tf.constant(np.concatenate([np.empty(0, np.int64), *drawn]))
    features = tf.nest.map_structure(tf.constant, rows.batch_features())

    def batch(start, stop):
      return tf.nest.map_structure(
        lambda feature: tf.gather(feature, index[start:stop]), features
      )

    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_tensor_slices((limits[:-1], limits[1:]))
    return dataset.map(batch).with_options(options)

  def client_input(
    self, num_rows: int, round_num: int, client_id: bytes
  ) -> 'tf.data.Dataset':
    """Returns the input `client_data.LOCAL_PRIVACY` of a client with some rows.

    A client without a step counts as one without data.
    """
    import tensorflow as tf

    of_pass, of_round = self.num_pass_steps(num_rows), self.num_steps(num_rows)
    num_examples = min(num_rows, self.max_rows or num_rows)
    seed = randomness.generator(
      'private_noise', self.seed, round_num, client_id
    ).randint(2**31, size=2, dtype=np.int64)
    return tf.data.Dataset.from_tensors(
      collections.OrderedDict(
        noise_seed=tf.constant(seed.astype(np.int32)),
        num_examples=tf.constant(num_examples if of_round else 0, tf.int64),
        # FedFish squares the gradients of the last pass.
        num_unobserved=tf.constant(of_round - of_pass, tf.int64),
      )
    )


def private_rounds(config: TrainConfig) -> PrivateRounds | None:
  """Returns how clients take rows; None: they do not train by DP-SGD."""
  work, privacy = config.client_work, config.local_privacy
  if not privacy.is_on:
    return None
  return PrivateRounds(
    seed=config.seeds.privacy_seed,
    batch_size=work.local_batch_size,
    num_epochs=work.num_local_epochs,
    num_local_steps=work.num_local_steps,
    max_rows=work.max_sequences_per_client,
    draws_batches=privacy.draws_batches,
  )
