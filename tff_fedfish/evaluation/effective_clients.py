"""How many clients the server's mean of a weight is worth in a round.

FedFish weighs clients in every coordinate by w_i F_i. Clients whose loss is
near 0 have gradients near 0 and hardly count, so a few others may decide: the
mean is then as noisy as one over these few.

Kish (1965): (sum m)^2 / sum m^2, with m the mass of a client. It is the number
of clients if all have the same mass, and 1 if one has it all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.model_shapes import weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.summary import EffectiveClients
from tff_fedfish.methods import method

ClientMass = Callable[[Any, tf.Tensor, Any], Sequence[tf.Tensor]]
"""(update, w_i, aggregator state) -> mass by which the client's delta is
weighed, float32, one tensor for each trainable tensor."""


def client_mass(
  config: TrainConfig, *, with_floor: bool = True
) -> tuple[ClientMass, float]:
  """Returns (mass, s) of a config's method; see `Method.mass`.

  Args:
    config: The run's. If its method declares no mass, it is the client weight,
      one scalar for each trainable tensor.
    with_floor: Whether to keep the method's `relative_floor`, if it has one. A
      floor gives mass to coordinates in which no client is informed.
  """
  if not with_floor and hasattr(config.algorithm, 'relative_floor'):
    config = config.with_values('algorithm', relative_floor=0.0)
  path = config.method.mass
  if path is not None:
    return method.load(path)(config)
  num_tensors = len(weight_shapes(config.model_shape()))
  return lambda update, client_weight, state: [client_weight] * num_tensors, 0.0


class MassSums:
  """Adds up the mass of a round's clients, one after the other.

  Takes 16 bytes of the host's memory for each coordinate, 24 with a part of the
  plain mean: sums of squares of diagonals around 1e-12, or of a model that
  diverges, need float64.
  """

  def __init__(
    self,
    mass: ClientMass,
    num_tensors: int,
    aggregator_state: Any = (),
    *,
    plain_mean_fraction: float = 0.0,
  ):
    """Starts without clients.

    Args:
      mass: Returns `num_tensors` tensors.
      num_tensors: Number of trainable tensors of the model.
      aggregator_state: State of the process's aggregator before the round.
      plain_mean_fraction: s, fraction of the mean weighted by w_i in the mean
        that the server takes.
    """
    self._num_tensors, self._fraction = num_tensors, plain_mean_fraction
    # Sums over clients of m, m^2 and, with a part of the plain mean, w m.
    self._sums: list[np.ndarray] = []
    # w_i of each client that takes part, and of each that has mass.
    self._plain_weights: list[float] = []
    self._weights: list[float] = []

    @tf.function
    def finite_mass(update, client_weight):
      masses = tf.nest.flatten(mass(update, client_weight, aggregator_state))
      is_finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(m)) for m in masses]
      )
      has_weight = tf.logical_and(client_weight > 0, is_finite)
      return [tf.where(has_weight, m, 0.0) for m in masses], has_weight

    self._finite_mass = finite_mass

  def add(self, update: Any, client_weight: float) -> None:
    """Adds a client by what it gives to the aggregator, and w_i >= 0.

    A client of weight 0, or with a mass that is not finite, has no mass.

    Raises:
      UserError: If the mass function returns more or fewer tensors.
    """
    tensors, takes_part = self._finite_mass(
      # Scalars too are then arguments, not constants of another graph.
      tf.nest.map_structure(tf.convert_to_tensor, update),
      tf.constant(client_weight, tf.float32),
    )
    if len(tensors) != self._num_tensors:
      raise UserError(
        "The method's `mass` must return one tensor for each of the "
        f'{self._num_tensors} trainable tensors, but returns {len(tensors)}. '
        'Correct it.'
      )
    masses = [np.asarray(mass, np.float64) for mass in tensors]
    if not self._sums:
      num_sums = 3 if self._fraction else 2
      self._sums = [np.zeros((num_sums, *mass.shape)) for mass in masses]
    if takes_part:
      self._plain_weights.append(float(client_weight))
    if any(mass.any() for mass in masses):
      self._weights.append(float(client_weight))
    for sums, mass in zip(self._sums, masses, strict=True):
      sums[0] += mass
      sums[1] += np.square(mass)
      if self._fraction:
        sums[2] += client_weight * mass

  def summary(self) -> EffectiveClients:
    """Returns the effective number of the clients that were added."""
    total, num_informed, num_weights = 0.0, 0, 0
    for sums in self._sums:
      effective = self._effective(*sums)
      total += float(effective.sum())
      num_informed += int(np.count_nonzero(effective))
      num_weights += effective.size
    of_weights = uninformed_fraction = None
    if self._weights:
      weights = np.array(self._weights)
      of_weights = float(_kish(weights.sum(), np.square(weights).sum()))
    if num_weights:
      uninformed_fraction = (num_weights - num_informed) / num_weights
    return EffectiveClients(
      mean=total / num_informed if num_informed else None,
      uninformed_fraction=uninformed_fraction,
      of_weights=of_weights,
    )

  def _effective(self, mass_sum, squared_sum, *weighted_sum):
    """Returns 1 / sum a_i^2 where there is mass, else 0.

    a_i = s w_i / sum(w) + (1 - s) m_i / sum(m) is the client's part.
    """
    if not weighted_sum:
      return _kish(mass_sum, squared_sum)
    # The plain mean also has the clients without mass.
    weights = np.array(self._plain_weights)
    s, is_informed = self._fraction, mass_sum > 0
    shares = [
      np.divide(x, y, out=np.zeros_like(mass_sum), where=is_informed)
      for x, y in (
        (squared_sum, np.square(mass_sum)),
        (weighted_sum[0], weights.sum() * mass_sum),
      )
    ]
    squares = (
      s**2 * np.square(weights).sum() / weights.sum() ** 2
      + 2 * s * (1 - s) * shares[1]
      + (1 - s) ** 2 * shares[0]
    )
    return np.where(is_informed, 1 / squares, 0.0)


def _kish(mass_sum, squared_mass_sum):
  """Returns (sum m)^2 / sum m^2, and 0 where there is no mass."""
  return np.divide(
    np.square(mass_sum),
    squared_mass_sum,
    out=np.zeros_like(mass_sum),
    where=squared_mass_sum > 0,
  )
