"""The finalizer slot: what the server does with the aggregate of a round."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds.finite import is_all_finite


def build_finalizer(
  server_optimizer: tff.learning.optimizers.Optimizer, weights_type: tff.Type
) -> tff.learning.templates.FinalizerProcess:
  """Builds a finalizer that steps only on an informative pseudo-gradient.

  A cohort that is empty, or whose clients were all rejected, yields an all-zero
  pseudo-gradient. A server optimizer with momentum would move the weights on
  it all the same, so weights and optimizer state are kept as they were. The
  measurements say why: `update_is_non_finite` and `update_is_all_zero` (int32,
  0 or 1).
  """

  @tf.autograph.experimental.do_not_convert
  def should_reject(unused_optimizer_state, update):
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


def build_idle_finalizer(
  weights_type: tff.Type,
) -> tff.learning.templates.FinalizerProcess:
  """Builds a finalizer that leaves the weights as they are."""

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(tff.TensorType(np.float32), tff.SERVER),
  )
  def next_fn(state, weights, unused_update):
    measurements = tff.federated_value(
      collections.OrderedDict(update_is_non_finite=0, update_is_all_zero=0),
      tff.SERVER,
    )
    return tff.templates.MeasuredProcessOutput(state, weights, measurements)

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)
