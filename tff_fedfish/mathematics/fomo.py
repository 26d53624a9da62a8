"""Mixing weights and downloads of FedFomo.

Zhang et al. (2021), "Personalized federated learning with first order model
optimization", equations 3 to 5 and section 4.2. Of a client with baseline b:

  raw weights      w_n = (L(b) - L(theta_n)) / |theta_n - b|
  mixing weights   w*_n = max(w_n, 0) / sum_m max(w_m, 0)
  federated update theta = b + sum_n w*_n (theta_n - b)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Structure = Any


def distance(
  model: Sequence[tf.Tensor], baseline: Sequence[tf.Tensor]
) -> tf.Tensor:
  """Returns the L2 norm of all entries of theta - b, a float32 scalar.

  Args:
    model: theta, float tensors.
    baseline: b, tensors of the same shapes.
  """
  total = tf.add_n(
    [
      tf.reduce_sum(tf.square(tf.cast(theta - b, tf.float32)))
      for theta, b in zip(model, baseline, strict=True)
    ]
  )
  return tf.sqrt(total)


def raw_weights(
  base_loss: tf.Tensor, losses: tf.Tensor, distances: tf.Tensor
) -> tf.Tensor:
  """Returns w_n, of any sign.

  Args:
    base_loss: L(b), float32.
    losses: L(theta_n), float32, a scalar or [candidates].
    distances: |theta_n - b|, shaped like it.

  Returns:
    Shaped like `losses`; 0 at a distance of 0, or where a loss or a distance is
    not finite.
  """
  gains = tf.convert_to_tensor(base_loss) - losses
  is_finite = tf.math.is_finite(gains) & tf.math.is_finite(distances)
  gains = tf.where(is_finite, gains, tf.zeros_like(gains))
  distances = tf.where(is_finite, distances, tf.zeros_like(distances))
  return tf.math.divide_no_nan(gains, distances)


def epsilon_of_round(
  epsilon: float, epsilon_decay: float, round_num: int
) -> float:
  """Returns max(epsilon - decay t, 0), t = `round_num` - 1."""
  return max(epsilon - epsilon_decay * (round_num - 1), 0.0)


def choose_downloads(
  affinity: np.ndarray,
  pool: Sequence[int],
  *,
  num_downloads: int,
  epsilon: float,
  generator: np.random.RandomState,
) -> list[int]:
  """Chooses the models that a client is sent.

  For each of them, with probability epsilon the next client of a random order,
  else the next one by descending affinity, ties in random order; clients that
  were chosen are skipped.

  Args:
    affinity: Row of the client, float [clients].
    pool: Clients whose models there are, without the client itself.
    num_downloads: Models to choose, at most.
    epsilon: Probability in [0, 1].
    generator: Draws.

  Returns:
    Numbers of the chosen clients, in the order of the choice.
  """
  pool = np.asarray(pool, np.int64)
  at_random = pool[generator.permutation(len(pool))].tolist()
  tied = generator.permutation(len(pool))
  values = np.asarray(affinity)[pool[tied]]
  by_affinity = pool[tied][np.argsort(-values, kind='stable')].tolist()
  chosen = []
  while len(chosen) < min(num_downloads, len(pool)):
    explores = generator.random_sample() < epsilon
    order = at_random if explores else by_affinity
    chosen.append(next(n for n in order if n not in chosen))
  return chosen
