"""Bounds the length of one client's step."""

from typing import Any

import tensorflow as tf

Structure = Any


def clip_to_norm(
  model_delta: Structure, max_norm: float
) -> tuple[Structure, tf.Tensor]:
  """Scales a model delta down to a global L2 norm.

    delta * min(1, max_norm / |delta|), |delta|^2 the sum of the squares of all
    entries of all tensors

  Args:
    model_delta: Structure of float tensors.
    max_norm: The largest norm that is left as it is, > 0. Unit: that of the
      weights.

  Returns:
    (delta, whether it was scaled, a scalar bool). A delta within the bound is
    returned bit for bit. One with an entry that is not finite becomes NaN, so
    that a client is rejected for it, bound or not.
  """
  tensors = tf.nest.flatten(model_delta)
  largest = tf.reduce_max(
    [tf.cast(tf.reduce_max(tf.abs(t)), tf.float32) for t in tensors]
  )
  # Relative to the largest entry, as the squares may overflow.
  squares = [
    tf.reduce_sum(
      tf.square(tf.math.divide_no_nan(tf.cast(t, tf.float32), largest))
    )
    for t in tensors
  ]
  relative_norm = tf.sqrt(tf.add_n(squares))
  # False for NaN, which infinite entries become.
  is_within = largest * relative_norm <= max_norm

  def scaled(tensor):
    factor = tf.cast(max_norm / relative_norm, tensor.dtype)
    return tensor / tf.cast(largest, tensor.dtype) * factor

  delta = tf.cond(
    is_within,
    lambda: tf.nest.map_structure(tf.identity, model_delta),
    lambda: tf.nest.map_structure(scaled, model_delta),
  )
  return delta, tf.logical_not(is_within)
