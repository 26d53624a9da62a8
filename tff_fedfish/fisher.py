"""The Fisher-weighted mean of FedFish.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale" (FedFish), equation 4 and algorithms 1 and 2:

  theta*[j] = sum_i w_i F_i[j] theta_i[j] / sum_i w_i F_i[j]

| letter | name here |
|---|---|
| F_i | `fisher_diagonal` of client i, see `fisher_diagonal.py` |
| w_i | `client_weight` |
| delta_i = theta_G - theta_i | `model_delta` |
| sum_i w_i F_i | `fisher_mass` |

Averaging deltas with these weights and stepping by 1 is the same as equation 4.

A family around it, which is not in the paper: F_i^p, 0 < p <= 1, may stand for
F_i (`fisher_diagonal_from_sums`), and the mean may be mixed with FedAvg's:

  g = s sum_i w_i delta_i / sum_i w_i
      + (1 - s) sum_i w_i F_i^p delta_i / sum_i w_i F_i^p

p = 1 and s = 0 is FedFish; p = 0 or s = 1 is FedAvg. In a coordinate client i
counts at most s w_i / sum_i w_i + 1 - s, whatever its Fisher diagonal is.
"""

from typing import Any

import numpy as np
import tensorflow as tf

Structure = Any
# Coordinates of a simulation.
_NUM_DRAWS = 20_000


def fisher_weighted_terms(
  model_delta: Structure,
  fisher_diagonal: Structure,
  client_weight: tf.Tensor | Structure,
  *,
  relative_floor: float,
  absolute_floor: float = 0.0,
) -> tuple[Structure, Structure]:
  """CLIENTS side: returns (w F delta, w F), the two things the server sums.

  F is lifted by `relative_floor` times its mean over the tensor, so that a
  coordinate in which nobody is informed has mass. Its mean is not FedAvg's:
  there a client weighs w_i times the mean of its own F over the tensor. Only
  where these means are equal, as with `fisher_normalization` 'tensor_mean', is
  it the plain mean. An absolute floor is offered for comparison only: squared
  gradients of a large model lie around 1e-12, and any floor above that turns
  FedFish into FedAvg.

  Args:
    model_delta: Initial minus final weights of the client.
    fisher_diagonal: Float32, same shapes, >= 0.
    client_weight: Scalar float32, w_i; or a structure like `model_delta` with
      one for each tensor, see `bounded_weights`.
    relative_floor: >= 0, share of a tensor's mean; 0 for none.
    absolute_floor: >= 0, unit (nats / weight)^2.

  Returns:
    (weighted deltas, Fisher mass), shapes and dtypes of `model_delta`.
  """
  if not tf.nest.is_nested(client_weight):
    client_weight = tf.nest.map_structure(lambda _: client_weight, model_delta)

  floors = dict(relative_floor=relative_floor, absolute_floor=absolute_floor)

  def mass(delta, fisher, weight):
    return tf.cast(client_mass(fisher, weight, **floors), delta.dtype)

  fisher_mass = tf.nest.map_structure(
    mass, model_delta, fisher_diagonal, client_weight
  )
  return (
    tf.nest.map_structure(tf.multiply, fisher_mass, model_delta),
    fisher_mass,
  )


def client_mass(
  fisher_diagonal: tf.Tensor,
  client_weight: tf.Tensor,
  *,
  relative_floor: float,
  absolute_floor: float = 0.0,
) -> tf.Tensor:
  """Returns w F of one tensor; see `fisher_weighted_terms`."""
  floor = relative_floor * tf.reduce_mean(fisher_diagonal)
  return client_weight * (fisher_diagonal + floor + absolute_floor)


def bounded_weights(
  fisher_diagonal: Structure,
  client_weight: tf.Tensor,
  mean_masses: tf.Tensor,
  max_mass_ratio: float,
) -> tuple[Structure, tf.Tensor, tf.Tensor]:
  """CLIENTS side: returns w_i for each tensor, lowered where its mass is large.

  A client's mass in a tensor is the mean over its entries of w_i F_i. At most
  c times the mean over the clients of the last round is let through:

    w_i min(1, c mean / mass_i)

  The tensor's w F and w F delta shrink alike, and keep their direction. The
  floor of `fisher_weighted_terms` is a share of F and cancels in the ratio.

  Args:
    fisher_diagonal: Structure of float32 tensors, >= 0.
    client_weight: Scalar float32, w_i.
    mean_masses: Float32 [tensors], the mean masses of the last round, in the
      order of `tf.nest.flatten`; 0: no bound.
    max_mass_ratio: c, >= 1.

  Returns:
    (weights, masses, is_bounded): scalars in the structure of the diagonal;
    float32 and bool [tensors], the masses after the bound, and whether it was
    exceeded. A mass that is not finite is returned as it is.
  """
  masses = client_weight * tf.stack(
    [tf.reduce_mean(f) for f in tf.nest.flatten(fisher_diagonal)]
  )
  bounds = tf.where(mean_masses > 0, max_mass_ratio * mean_masses, np.inf)
  is_bounded = tf.logical_and(masses > bounds, tf.math.is_finite(masses))
  weights = tf.where(
    is_bounded, client_weight * (bounds / masses), client_weight
  )
  return (
    tf.nest.pack_sequence_as(fisher_diagonal, tf.unstack(weights)),
    tf.where(is_bounded, bounds, masses),
    is_bounded,
  )


def next_mean_masses(
  mean_masses: tf.Tensor, mass_sums: tf.Tensor, num_clients: tf.Tensor
) -> tf.Tensor:
  """SERVER side: returns the mean masses that bound the next round.

  Args:
    mean_masses: Float32 [tensors], those of the last round.
    mass_sums: Float32 [tensors], sums over this round's clients of their masses
      after the bound.
    num_clients: Scalar float32, the clients with data in it.

  Returns:
    Float32 [tensors], the means; the last round's where no client has mass, as
    a mean of 0 would bound nothing, or where the sum is beyond float32.
  """
  means = tf.math.divide_no_nan(mass_sums, num_clients)
  is_mean = tf.logical_and(means > 0, tf.math.is_finite(means))
  return tf.where(is_mean, means, mean_masses)


def fisher_weighted_mean(
  weighted_delta_sum: Structure,
  fisher_mass: Structure,
  fallback: Structure | None = None,
) -> Structure:
  """SERVER side: returns sum(w F delta) / sum(w F), coordinate by coordinate.

  Args:
    weighted_delta_sum: Sum over clients of w F delta.
    fisher_mass: Sum over clients of w F, same shapes.
    fallback: What to return where the mass is exactly 0, such as the plain
      weighted mean (which costs clients a third upload). None: 0, which keeps
      the server's value.

  Returns:
    The pseudo-gradient; finite wherever its arguments are.
  """
  mean = tf.nest.map_structure(
    tf.math.divide_no_nan, weighted_delta_sum, fisher_mass
  )
  if fallback is None:
    return mean
  return tf.nest.map_structure(
    lambda m, mass, other: tf.where(mass > 0, m, other),
    mean,
    fisher_mass,
    fallback,
  )


def mixed_mean(
  weighted_mean: Structure, plain_mean: Structure, plain_mean_fraction: float
) -> Structure:
  """SERVER side: returns s times the plain mean plus 1 - s times the other.

  Args:
    weighted_mean: The Fisher-weighted mean of the model deltas.
    plain_mean: Their mean with the weights w_i, same shapes.
    plain_mean_fraction: s, in [0, 1].
  """
  s = plain_mean_fraction
  return tf.nest.map_structure(
    lambda weighted, plain: s * plain + (1.0 - s) * weighted,
    weighted_mean,
    plain_mean,
  )


def effective_clients(
  mass_sum: np.ndarray, squared_mass_sum: np.ndarray
) -> np.ndarray:
  """Returns how many equally weighted clients each coordinate's mean is worth.

  Kish's (1965) effective sample size, (sum m)^2 / sum m^2 with m the mass of a
  client: the number of clients where all have the same mass, 1 where one has
  it all. By it the noise of a mean over clients shrinks.

  Args:
    mass_sum: Float64, sum over clients of the mass, >= 0.
    squared_mass_sum: Sum of its squares, same shape.

  Returns:
    Float64, same shape; 0 where no client has mass.
  """
  return np.divide(
    np.square(mass_sum),
    squared_mass_sum,
    out=np.zeros_like(mass_sum),
    where=squared_mass_sum > 0,
  )
