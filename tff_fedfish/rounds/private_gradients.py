"""The gradient of one batch in DP-SGD, in plain TensorFlow.

Abadi et al. (2016), "Deep learning with differential privacy", algorithm 1,
with g_r the gradient of the mean loss of row r of a batch L:

  g = (sum over r in L of g_r / max(1, |g_r| / C) + sigma C N(0, I)) / B

B is the nominal size of a batch, not the number of rows that it has.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_fedfish.optimizers import clip_to_norm
from tff_fedfish.rounds.finite import is_all_finite, zero_unless
from tff_fedfish.rounds.fold import fold
from tff_fedfish.rounds.gradients import (
  BatchGradients,
  ExtraLoss,
  batch_gradients,
  num_rows,
)
from tff_fedfish.rounds.privacy import LocalPrivacy

Structure = Any


def private_gradients(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  batch: Any,
  metrics: Structure,
  step: tf.Tensor,
  *,
  privacy: LocalPrivacy,
  noise_seed: tf.Tensor,
  prepare: Callable[[Any], Any] | None = None,
  extra_loss: ExtraLoss | None = None,
) -> BatchGradients:
  """Returns the clipped, summed and noised gradients of a batch.

  One row at a time passes through the model, so that the gradients of a few
  models are in memory. A row counts by the mean over its own targets: rows of
  text with few real targets count as much as others, and one without adds 0. So
  does a row whose gradient or loss is not finite; it is left out of the
  metrics, too.

  Args are those of `batch_gradients`, and:
    metrics: It gets no noise.
    step: Int32 scalar, the number of the step within the round.
    privacy: Clip norm, noise multiplier and nominal batch size.
    noise_seed: Int32 [2]; seed of the noise of the client's round, and of
      nothing else.
    extra_loss: Part of a row's loss, and so of what is clipped.

  Returns:
    Gradients with `num_examples` B; `data` and `total` are the same noised
    gradients. `loss` is the mean data loss of the rows, without noise.
  """

  def add(carried, start):
    sums, loss_sum, metrics = carried
    found = batch_gradients(
      model,
      trainable,
      non_trainable,
      _row(batch, start),
      metrics,
      training=True,
      prepare=prepare,
      extra_loss=extra_loss,
      with_data=False,
    )
    # Of this row only: what others add must not decide on it.
    is_finite = is_all_finite([found.total, found.loss])
    clipped, _ = clip_to_norm(found.total, privacy.clip_norm)
    return (
      _add(sums, zero_unless(is_finite, clipped)),
      loss_sum + tf.where(is_finite, tf.cast(found.loss, tf.float32), 0.0),
      # Metrics that are not finite would have the whole client rejected.
      _chosen(is_all_finite(found.metrics), found.metrics, metrics),
    )

  zeros = tf.nest.map_structure(tf.zeros_like, trainable)
  num_found = num_rows(batch)
  sums, loss_sum, metrics = fold(
    tf.range(num_found), (zeros, tf.constant(0.0), metrics), add
  )
  gradients = _noised_mean(sums, step, privacy, noise_seed)
  return BatchGradients(
    tf.math.divide_no_nan(loss_sum, tf.cast(num_found, tf.float32)),
    tf.constant(privacy.batch_size, tf.int64),
    metrics,
    gradients,
    gradients,
  )


@tf.autograph.experimental.do_not_convert
def _noised_mean(sums, step, privacy, noise_seed):
  """Returns (sums + noise) / B; every tensor and step has other noise."""
  tensors = tf.nest.flatten(sums)
  if privacy.noise_multiplier:
    deviation = privacy.noise_multiplier * privacy.clip_norm
    fold_in = tf.random.experimental.stateless_fold_in
    # An int64 keeps both words of the seed, an int32 only one.
    seed = fold_in(noise_seed, tf.cast(step, tf.int64))
    tensors = [
      tensor
      + tf.random.stateless_normal(
        tensor.shape,
        fold_in(seed, tf.constant(i, tf.int64)),
        stddev=deviation,
        dtype=tensor.dtype,
      )
      for i, tensor in enumerate(tensors)
    ]
  tensors = [tensor / privacy.batch_size for tensor in tensors]
  return tf.nest.pack_sequence_as(sums, tensors)


@tf.autograph.experimental.do_not_convert
def _row(batch, position):
  return tf.nest.map_structure(lambda t: t[position : position + 1], batch)


@tf.autograph.experimental.do_not_convert
def _add(sums, gradients):
  return tf.nest.map_structure(tf.add, sums, gradients)


@tf.autograph.experimental.do_not_convert
def _chosen(condition, first, second):
  return tf.nest.map_structure(
    lambda a, b: tf.where(condition, a, b), first, second
  )
