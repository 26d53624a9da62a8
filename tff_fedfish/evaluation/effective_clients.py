"""How many clients the server's mean of a coordinate is worth in a round.

FedFish weighs clients in every coordinate by w_i F_i. Clients whose loss is
near 0 have gradients near 0 and hardly count, so that a few others may decide:
the mean then is as noisy as that over these few.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_fedfish import fisher

# A power of two. Diagonals of large models lie around 1e-12, the squares of
# which would vanish in float32.
_SCALE = 2.0**30


class EffectiveClients:
  """Adds up the mass of a round's clients, one after the other."""

  def __init__(
    self,
    mass: Callable[[tuple[tf.Tensor, ...], tf.data.Dataset, tf.Tensor], Any],
    shapes: Mapping[str, tuple[int, ...]],
  ):
    """Starts without clients.

    Args:
      mass: (trained weights, batches, w_i) -> what weighs the client's delta,
        plain TensorFlow: tensors of `shapes`, in their order.
      shapes: Of the tensors, by name.
    """
    self._shapes = dict(shapes)
    zeros = tuple(tf.zeros(shape) for shape in self._shapes.values())
    self._sums = zeros, zeros

    @tf.function
    def add(sums, trainable, dataset, client_weight):
      scaled = [
        _SCALE * m
        for m in tf.nest.flatten(mass(trainable, dataset, client_weight))
      ]
      # A client whose update is not finite has no weight in the round either.
      is_finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(m * m)) for m in scaled]
      )
      scaled = [tf.where(is_finite, m, 0.0) for m in scaled]
      mass_sums, squares = sums
      return (
        tuple(s + m for s, m in zip(mass_sums, scaled, strict=True)),
        tuple(s + m * m for s, m in zip(squares, scaled, strict=True)),
      )

    self._add = add

  def add(
    self,
    trainable: tuple[tf.Tensor, ...],
    dataset: tf.data.Dataset,
    client_weight: float,
  ) -> None:
    """Adds a client.

    Args:
      trainable: Its weights after local training.
      dataset: Its batches.
      client_weight: w_i, > 0.
    """
    self._sums = self._add(
      self._sums, trainable, dataset, tf.constant(client_weight, tf.float32)
    )

  def summary(self) -> dict[str, Any]:
    """Returns `effective_clients` of `summary.json`.

    Returns:
      `tensors`: of each the mean over its coordinates of Kish's effective
      number of clients (`fisher.effective_clients`), 0 where no client has
      mass; and `mean`: that over the coordinates of all others, None without.
    """
    sizes = {
      name: float(fisher.effective_clients(total, squares))
      for name, total, squares in zip(self._shapes, *self._sums, strict=True)
    }
    counts = {
      name: tf.TensorShape(shape).num_elements()
      for name, shape in self._shapes.items()
      if sizes[name] > 0
    }
    total = sum(counts[name] * sizes[name] for name in counts)
    return {
      'mean': total / sum(counts.values()) if counts else None,
      'tensors': sizes,
    }
