"""How many clients the server's mean of a coordinate is worth in a round.

FedFish weighs clients in every coordinate by w_i F_i. Clients whose loss is
near 0 have gradients near 0 and hardly count, so that a few others may decide:
the mean then is as noisy as that over these few.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.model_shapes import weight_shapes
from tff_fedfish import fisher
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import method

ClientMass = Callable[[Any, tf.Tensor, Any], Sequence[tf.Tensor]]
"""(update, w_i, aggregator state) -> mass by which the client's delta is
weighed, float32, one tensor for each trainable tensor."""


def client_mass_of(config: TrainConfig) -> ClientMass:
  """Returns the mass function of a config's method.

  Args:
    config: The run's config. If its method declares no `client_mass`, the mass
      is the client weight, one scalar for each trainable tensor.
  """
  path = config.method.client_mass
  if path is not None:
    return method.load(path)(config)
  num_tensors = len(weight_shapes(config.model_shape()))
  return lambda update, client_weight, state: [client_weight] * num_tensors


class EffectiveClients:
  """Adds up the mass of a round's clients, one after the other.

  Takes 16 bytes of the host's memory for each coordinate: sums of squares of
  diagonals around 1e-12, or of a model that diverges, need float64.
  """

  def __init__(
    self,
    client_mass: ClientMass,
    names: Sequence[str],
    aggregator_state: Any = (),
  ):
    """Starts without clients.

    Args:
      client_mass: Plain TensorFlow; as many tensors as there are names.
      names: Of the tensors.
      aggregator_state: That of the learning process before the round.
    """
    self._names = tuple(names)
    # Sum and sum of squares of each tensor's mass.
    self._sums: list[tuple[np.ndarray, np.ndarray]] | None = None

    @tf.function
    def finite_mass(update, client_weight):
      mass = tf.nest.flatten(
        client_mass(update, client_weight, aggregator_state)
      )
      is_finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(m)) for m in mass]
      )
      has_weight = tf.logical_and(client_weight > 0, is_finite)
      return [tf.where(has_weight, m, 0.0) for m in mass]

    self._finite_mass = finite_mass

  def add(self, update: Any, client_weight: float) -> None:
    """Adds a client.

    Args:
      update: What the client gives to the aggregator.
      client_weight: w_i, >= 0; one of 0 has no mass.

    Raises:
      UserError: If `client_mass` returns more or fewer tensors than names.
    """
    found = self._finite_mass(
      # Scalars too are then arguments, not constants of another graph.
      tf.nest.map_structure(tf.convert_to_tensor, update),
      tf.constant(client_weight, tf.float32),
    )
    if len(found) != len(self._names):
      raise UserError(
        "The method's `client_mass` must return one tensor for each of the "
        f'{len(self._names)} trainable tensors, but returns {len(found)}. '
        'Correct it.'
      )
    if self._sums is None:
      self._sums = [(np.zeros(m.shape), np.zeros(m.shape)) for m in found]
    for (mass_sum, squared_sum), mass in zip(self._sums, found, strict=True):
      mass_sum += mass.numpy()
      squared_sum += np.square(mass.numpy(), dtype=np.float64)

  def summary(self) -> dict[str, Any]:
    """Returns `effective_clients` of `summary.json`.

    Returns:
      `mean`: that of `fisher.effective_clients` over the coordinates in which
      any client has mass, and `tensors`: the same for each tensor, by name.
      None where there is no such coordinate.
    """
    totals = dict.fromkeys(self._names, 0.0)
    counts = dict.fromkeys(self._names, 0)
    for name, sums in zip(self._names, self._sums or (), strict=False):
      effective = fisher.effective_clients(*sums)
      totals[name] = float(effective.sum())
      counts[name] = int(np.count_nonzero(effective))

    def mean(total, count):
      return total / count if count else None

    return {
      'mean': mean(sum(totals.values()), sum(counts.values())),
      'tensors': {n: mean(totals[n], counts[n]) for n in self._names},
    }
