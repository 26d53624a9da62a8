"""How many clients the server's mean of a coordinate is worth in a round.

FedFish weighs clients in every coordinate by w_i F_i. Clients whose loss is
near 0 have gradients near 0 and hardly count, so that a few others may decide:
the mean then is as noisy as that over these few.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_fedfish import fisher

ClientMass = Callable[
  [tuple[tf.Tensor, ...], tf.data.Dataset, tf.Tensor], Sequence[tf.Tensor]
]
"""(trained weights, batches, w_i) -> what the client's delta is weighed by."""


class EffectiveClients:
  """Adds up the mass of a round's clients, one after the other.

  Takes 16 bytes of the host's memory for each coordinate: sums of squares of
  diagonals around 1e-12, or of a model that diverges, need float64.
  """

  def __init__(self, client_mass: ClientMass, names: Sequence[str]):
    """Starts without clients.

    Args:
      client_mass: Plain TensorFlow; float32 tensors, one for each name.
      names: Of the tensors.
    """
    self._names = tuple(names)
    self._mass_sums: list[np.ndarray] | None = None
    self._squared_sums: list[np.ndarray] | None = None

    @tf.function
    def finite_mass(trainable, dataset, client_weight):
      mass = list(client_mass(trainable, dataset, client_weight))
      # A client that diverged has no weight in the round either.
      is_finite = tf.reduce_all(
        [
          tf.reduce_all(tf.math.is_finite(t))
          for t in [*tf.nest.flatten(trainable), *mass]
        ]
      )
      return [tf.where(is_finite, m, 0.0) for m in mass]

    self._finite_mass = finite_mass

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
    found = self._finite_mass(
      trainable, dataset, tf.constant(client_weight, tf.float32)
    )
    if self._mass_sums is None:
      self._mass_sums = [np.zeros(m.shape, np.float64) for m in found]
      self._squared_sums = [np.zeros(m.shape, np.float64) for m in found]
    sums = zip(self._mass_sums, self._squared_sums, found, strict=True)
    for mass_sum, squared_sum, mass in sums:
      mass_sum += mass.numpy()
      squared_sum += np.square(mass.numpy(), dtype=np.float64)

  def summary(self) -> dict[str, Any]:
    """Returns `effective_clients` of `summary.json`.

    Returns:
      `mean`: that of `fisher.effective_clients` over the coordinates in which
      any client has mass, and `tensors`: likewise for each of them by name.
      None where there is no such coordinate.
    """
    totals, counts = {}, {}
    for name, mass_sum, squared_sum in zip(
      self._names, self._mass_sums or (), self._squared_sums or (), strict=False
    ):
      effective = fisher.effective_clients(mass_sum, squared_sum)
      totals[name] = float(effective.sum())
      counts[name] = int(np.count_nonzero(effective))
    return {
      'mean': _mean(sum(totals.values()), sum(counts.values())),
      'tensors': {
        name: _mean(totals.get(name, 0.0), counts.get(name, 0))
        for name in self._names
      },
    }


def _mean(total, count):
  return total / count if count else None
