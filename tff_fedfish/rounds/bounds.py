"""Bounds what one client adds to a sum: finite numbers, of a bounded norm."""

from typing import Any

import tensorflow as tf

Structure = Any


def is_all_finite(value: Structure) -> tf.Tensor:
  """Returns a scalar bool: whether every float entry of `value` is finite."""
  checks = [
    tf.reduce_all(tf.math.is_finite(tensor))
    for tensor in tf.nest.flatten(value)
    if tensor.dtype.is_floating
  ]
  return tf.reduce_all(checks)


def zero_if_non_finite(value: Structure) -> tuple[Structure, tf.Tensor]:
  """Returns `value`, all of it zero if any entry is not finite, and whether."""
  is_finite = is_all_finite(value)
  return zero_unless(is_finite, value), tf.logical_not(is_finite)


def zero_unless(condition: tf.Tensor, value: Structure) -> Structure:
  """Returns `value` where the scalar `condition` holds, else zeros."""
  # Not by multiplying: 0 * NaN is NaN. Without the `tf.cond`, `tf.where` would
  # copy the value, as large as the model, though it is almost always kept.
  return tf.cond(
    condition,
    lambda: tf.nest.map_structure(tf.identity, value),
    lambda: tf.nest.map_structure(
      lambda tensor: tf.where(condition, tensor, tf.zeros([], tensor.dtype)),
      value,
    ),
  )


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
