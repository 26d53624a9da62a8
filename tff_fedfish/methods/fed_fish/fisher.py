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


def fisher_weighted_terms(
  model_delta: Structure,
  fisher_diagonal: Structure,
  client_weight: tf.Tensor,
  *,
  relative_floor: float,
) -> tuple[Structure, Structure]:
  """CLIENTS side: returns (w F delta, w F), the two things the server sums.

  F is lifted by `relative_floor` times its mean over the tensor, stacked layers
  included, so that a coordinate in which nobody is informed has mass. Its mean
  is not FedAvg's: there a client weighs w_i times the mean of its own F over
  the tensor. Only where these means are equal, as with `fisher_normalization`
  'tensor_mean', is it the plain mean.

  Args:
    model_delta: Initial minus final weights of the client.
    fisher_diagonal: Float32, same shapes, >= 0.
    client_weight: Scalar float32, w_i.
    relative_floor: >= 0, share of a tensor's mean; 0 for none.

  Returns:
    (weighted deltas, Fisher mass), shapes and dtypes of `model_delta`.
  """

  def mass(delta, fisher):
    floor = relative_floor * tf.reduce_mean(fisher)
    return tf.cast(client_weight * (fisher + floor), delta.dtype)

  fisher_mass = tf.nest.map_structure(mass, model_delta, fisher_diagonal)
  return (
    tf.nest.map_structure(tf.multiply, fisher_mass, model_delta),
    fisher_mass,
  )


def fisher_weighted_mean(
  weighted_delta_sum: Structure, fisher_mass: Structure
) -> Structure:
  """SERVER side: returns sum(w F delta) / sum(w F), coordinate by coordinate.

  Args:
    weighted_delta_sum: Sum over clients of w F delta.
    fisher_mass: Sum over clients of w F, same shapes.

  Returns:
    The pseudo-gradient; finite wherever its arguments are, and 0 where the mass
    is.
  """
  return tf.nest.map_structure(
    tf.math.divide_no_nan, weighted_delta_sum, fisher_mass
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
