"""The Fisher-weighted mean of FedFish and the diagonals that weight it.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale" (FedFish), equation 4 and algorithms 1 and 2:

  theta*[j] = sum_i w_i F_i[j] theta_i[j] / sum_i w_i F_i[j]

| letter | name here |
|---|---|
| F_i | `fisher_diagonal` of client i |
| w_i | `client_weight` |
| delta_i = theta_G - theta_i | `model_delta` |
| sum_i w_i F_i | `fisher_mass` |

Averaging deltas with these weights and stepping by 1 is the same as equation 4.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedfish import local_training

Structure = Any


class FisherSums(NamedTuple):
  """Sums over batches from which a Fisher diagonal is made.

  Attributes:
    squared_gradients: Float32 tensors shaped like the trainable weights.
    num_batches: Int64, batches in the sum.
  """

  squared_gradients: Structure
  num_batches: tf.Tensor


def zero_sums(trainable: Structure) -> FisherSums:
  """Returns the sums over no batches."""
  return FisherSums(
    tf.nest.map_structure(lambda w: tf.zeros(w.shape, tf.float32), trainable),
    tf.constant(0, tf.int64),
  )


def add_batch(sums: FisherSums, gradients: Structure) -> FisherSums:
  """Adds the squares of one batch's gradient of the mean loss.

  Args:
    sums: Sums so far.
    gradients: Dense tensors shaped like the trainable weights, of any float
      dtype; squared in float32.

  Returns:
    The new sums.
  """
  return FisherSums(
    tf.nest.map_structure(
      lambda s, g: s + tf.square(tf.cast(g, tf.float32)),
      sums.squared_gradients,
      gradients,
    ),
    sums.num_batches + 1,
  )


def sums_over(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
) -> FisherSums:
  """Sums squared batch gradients at fixed weights (algorithm 2, extra pass).

  The gradient is that of the data loss alone, the model not in training mode.
  Squaring batch means underestimates the per-example diagonal by about the
  batch size, so clients are comparable only at equal batch sizes.

  Args:
    model: See `local_training`.
    trainable: The client's weights after local training.
    non_trainable: Weights held fixed.
    dataset: The client's batches.

  Returns:
    The sums, to be called while a `tf.function` is traced.
  """
  sums = zero_sums(trainable)
  for batch in iter(dataset):
    # The weights are fixed, so nothing else would keep batches from running,
    # and taking memory, side by side.
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    _, gradients = local_training.forward_and_gradients(
      model, trainable, non_trainable, batch, training=False
    )
    sums = add_batch(sums, gradients)
  return sums


def fisher_diagonal_from_sums(sums: FisherSums, reduction: str) -> Structure:
  """Returns the empirical Fisher diagonal of one client.

  Args:
    sums: Sums over the client's batches.
    reduction: 'sum' as printed in algorithm 2, under which a client's
      influence grows with its number of batches; 'mean' as in the text of
      section 3.

  Returns:
    Float32 tensors >= 0 shaped like the weights, unit (nats / weight)^2; 0 for
    a client without batches.

  Raises:
    ValueError: If `reduction` is neither.
  """
  if reduction == 'sum':
    return sums.squared_gradients
  if reduction != 'mean':
    raise ValueError(
      f"`fisher_reduction` must be 'sum' or 'mean', found {reduction!r}."
    )
  num_batches = tf.cast(sums.num_batches, tf.float32)
  return tf.nest.map_structure(
    lambda s: tf.math.divide_no_nan(s, num_batches), sums.squared_gradients
  )


def fisher_weighted_terms(
  model_delta: Structure,
  fisher_diagonal: Structure,
  client_weight: tf.Tensor,
  *,
  relative_floor: float,
  absolute_floor: float = 0.0,
) -> tuple[Structure, Structure]:
  """CLIENTS side: returns (w F delta, w F), the two things the server sums.

  F is lifted by `relative_floor` times its mean over the tensor, so that a
  coordinate in which nobody is informed falls back to nearly the plain mean.
  An absolute floor is offered for comparison only: squared gradients of a
  large model lie around 1e-12, and any floor above that turns FedFish into
  FedAvg.

  Args:
    model_delta: Initial minus final weights of the client.
    fisher_diagonal: Float32, same shapes, >= 0.
    client_weight: Scalar float32, w_i.
    relative_floor: >= 0, share of a tensor's mean; 0 for none.
    absolute_floor: >= 0, unit (nats / weight)^2.

  Returns:
    (weighted deltas, Fisher mass), shapes and dtypes of `model_delta`.
  """

  def mass(delta, fisher):
    lifted = fisher + relative_floor * tf.reduce_mean(fisher) + absolute_floor
    return tf.cast(client_weight * lifted, delta.dtype)

  fisher_mass = tf.nest.map_structure(mass, model_delta, fisher_diagonal)
  return (
    tf.nest.map_structure(tf.multiply, fisher_mass, model_delta),
    fisher_mass,
  )


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
