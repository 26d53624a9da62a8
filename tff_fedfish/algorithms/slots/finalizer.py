"""The finalizer slot: the server optimizer's step, or no step at all."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.algorithms.slots.finite import is_all_finite


def build_finalizer(
  server_optimizer: tff.learning.optimizers.Optimizer,
  weights_type: tff.Type,
) -> tff.learning.templates.FinalizerProcess:
  """Builds a finalizer that steps only on an informative pseudo-gradient.

  A cohort that is empty, or whose clients were all rejected, yields an all-zero
  pseudo-gradient. A server optimizer with momentum would move the weights on
  it all the same, so weights and optimizer state are kept as they were.

  Args:
    server_optimizer: Consumes the pseudo-gradient as a gradient.
    weights_type: Type of the model weights (ModelWeights container).

  Returns:
    The process, with measurements `update_is_non_finite` and
    `update_is_all_zero` (int32, 0 or 1).
  """

  def should_reject(optimizer_state, update):
    del optimizer_state
    tensors = tf.nest.flatten(update)
    non_finite = tf.logical_not(is_all_finite(update))
    all_zero = tf.reduce_all([tf.reduce_all(tf.equal(t, 0)) for t in tensors])
    measurements = collections.OrderedDict(
      update_is_non_finite=tf.cast(non_finite, tf.int32),
      update_is_all_zero=tf.cast(all_zero, tf.int32),
    )
    return tf.logical_or(non_finite, all_zero), measurements

  return tff.learning.templates.build_apply_optimizer_finalizer(
    server_optimizer, weights_type, should_reject_update=should_reject
  )
