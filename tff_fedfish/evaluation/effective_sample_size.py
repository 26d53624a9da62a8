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
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import method

ClientMass = Callable[[Any, tf.Tensor, Any], Sequence[tf.Tensor]]
"""(update, w_i, aggregator state) -> mass by which the client's delta is
weighed, float32, one tensor for each trainable tensor."""


def client_mass_of(config: TrainConfig) -> tuple[ClientMass, float]:
  """Returns (mass, s) of a config's method, see `Method.mass`.

  Args:
    config: The run's config. If its method declares no mass, it is the client
      weight, one scalar for each trainable tensor.
  """
  path = config.method.mass
  if path is not None:
    return method.load(path)(config)
  num_tensors = len(weight_shapes(config.model_shape()))
  return lambda update, client_weight, state: [client_weight] * num_tensors, 0.0


def informed_mass_of(config: TrainConfig) -> tuple[ClientMass, float]:
  """Returns `client_mass_of` without the method's `relative_floor`, if any.

  A floor gives mass to coordinates in which no client is informed, and there
  makes clients alike.
  """
  if hasattr(config.algorithm, 'relative_floor'):
    config = config.with_values('algorithm', relative_floor=0.0)
  return client_mass_of(config)


def effective_clients(
  mass_sum: np.ndarray, squared_mass_sum: np.ndarray
) -> np.ndarray:
  """Returns Kish's (1965) effective sample size of each coordinate's mean.

  (sum m)^2 / sum m^2, with m the mass of a client: the number of clients if all
  have the same mass, 1 if one has it all, 0 if none has any.

  Args:
    mass_sum: Float64, sum over clients of the mass, >= 0.
    squared_mass_sum: Sum of its squares, same shape.

  Returns:
    Float64, same shape.
  """
  return np.divide(
    np.square(mass_sum),
    squared_mass_sum,
    out=np.zeros_like(mass_sum),
    where=squared_mass_sum > 0,
  )


class EffectiveClients:
  """Adds up the mass of a round's clients, one after the other.

  Takes 16 bytes of the host's memory for each coordinate, 24 with a part of the
  plain mean: sums of squares of diagonals around 1e-12, or of a model that
  diverges, need float64.
  """

  def __init__(
    self,
    client_mass: ClientMass,
    num_tensors: int,
    aggregator_state: Any = (),
    *,
    plain_mean_fraction: float = 0.0,
  ):
    """Starts without clients.

    Args:
      client_mass: Mass function, which returns `num_tensors` tensors.
      num_tensors: Trainable tensors of the model.
      aggregator_state: State of the process's aggregator before the round.
      plain_mean_fraction: s: fraction of the mean weighted by w_i in the mean
        that the server takes.
    """
    self._num_tensors = num_tensors
    self._fraction = plain_mean_fraction
    # Sums over clients of m, m^2 and, with a part of the plain mean, w m.
    self._sums: list[tuple[np.ndarray, ...]] | None = None
    # w_i of each client that takes part, and of each that has mass.
    self._plain_weights: list[float] = []
    self._weights: list[float] = []

    @tf.function
    def finite_mass(update, client_weight):
      mass = tf.nest.flatten(
        client_mass(update, client_weight, aggregator_state)
      )
      is_finite = tf.reduce_all(
        [tf.reduce_all(tf.math.is_finite(m)) for m in mass]
      )
      has_weight = tf.logical_and(client_weight > 0, is_finite)
      return [tf.where(has_weight, m, 0.0) for m in mass], has_weight

    self._finite_mass = finite_mass

  def add(self, update: Any, client_weight: float) -> None:
    """Adds a client by what it gives to the aggregator, and w_i >= 0.

    One of weight 0 has no mass.

    Raises:
      UserError: If `mass` returns more or fewer tensors.
    """
    found, takes_part = self._finite_mass(
      # Scalars too are then arguments, not constants of another graph.
      tf.nest.map_structure(tf.convert_to_tensor, update),
      tf.constant(client_weight, tf.float32),
    )
    if len(found) != self._num_tensors:
      raise UserError(
        "The method's `mass` must return one tensor for each of the "
        f'{self._num_tensors} trainable tensors, but returns {len(found)}. '
        'Correct it.'
      )
    masses = [np.asarray(mass, np.float64) for mass in found]
    if self._sums is None:
      num_sums = 3 if self._fraction else 2
      self._sums = [
        tuple(np.zeros(mass.shape) for _ in range(num_sums)) for mass in masses
      ]
    if takes_part:
      self._plain_weights.append(float(client_weight))
    if any(mass.any() for mass in masses):
      self._weights.append(float(client_weight))
    for (mass_sum, squared_sum, *weighted_sum), mass in zip(
      self._sums, masses, strict=True
    ):
      mass_sum += mass
      squared_sum += np.square(mass)
      for total in weighted_sum:
        total += client_weight * mass

  def summary(self) -> dict[str, float | None]:
    """Returns `effective_clients` of `summary.json`.

    Returns:
      `mean`: Kish's size of the mean that the server takes, over the
      coordinates in which any client has mass; None without such a coordinate.
      `uninformed_fraction`: fraction of the other coordinates. `of_weights`:
      Kish's size of the w_i of the same clients.
    """
    total, num_informed = 0.0, 0
    sizes = [mass_sum.size for mass_sum, *_ in self._sums or ()]
    weights = np.array(self._weights)
    for sums in self._sums or ():
      effective = self._effective(*sums)
      total += float(effective.sum())
      num_informed += int(np.count_nonzero(effective))
    return {
      'mean': total / num_informed if num_informed else None,
      'uninformed_fraction': (
        (sum(sizes) - num_informed) / sum(sizes) if sizes else None
      ),
      'of_weights': (
        float(effective_clients(weights.sum(), np.square(weights).sum()))
        if self._weights
        else None
      ),
    }

  def _effective(self, mass_sum, squared_sum, *weighted_sum):
    """Returns 1 / sum a_i^2 where there is mass, else 0.

    a_i = s w_i / sum(w) + (1 - s) m_i / sum(m) is the client's part.
    """
    if not weighted_sum:
      return effective_clients(mass_sum, squared_sum)
    # The plain mean has those who are informed of nothing, too.
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
