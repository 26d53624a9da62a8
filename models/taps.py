"""Inputs and outputs of a layer, as a tap of `models.layers` sees them."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from models.layers import Layer


def tapped_logits(
  model: Any,
  weights: Sequence[tf.Tensor],
  x: Any,
  tape: tf.GradientTape | None = None,
) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
  """Returns logits, and inputs and preactivations of all layers by name.

  A tape watches the preactivations.
  """
  inputs, outputs = {}, {}

  def tap(name, of_layer, preactivations):
    if tape is not None:
      tape.watch(preactivations)
    inputs[name], outputs[name] = of_layer, preactivations
    return preactivations

  return model.tapped_logits((weights, ()), x, tap), inputs, outputs


def inputs_by_position(layer: Layer, inputs: tf.Tensor) -> tf.Tensor:
  """Returns the inputs that V of a layer multiplies at every position.

  From `inputs` as a `models.layers.Tap` gets them, float32 [rows, positions,
  fan_in]: of a convolution patches, ordered by (height, width, channel) as the
  rows of V.
  """
  if layer.window is not None:
    height, width, stride, padding = layer.window
    inputs = tf.image.extract_patches(
      inputs,
      sizes=[1, height, width, 1],
      strides=[1, stride, stride, 1],
      rates=[1, 1, 1, 1],
      padding=padding,
    )
  return by_position(inputs)


def by_position(values: tf.Tensor) -> tf.Tensor:
  """Returns [rows, ..., features] as float32 [rows, positions, features]."""
  *sizes, width = values.shape[1:]
  values = tf.reshape(values, [-1, math.prod(sizes), width])
  return tf.cast(values, tf.float32)
