"""Keeps what a client adds to a sum finite."""

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
