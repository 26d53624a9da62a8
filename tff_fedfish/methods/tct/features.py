"""Features of the empirical neural tangent kernel, in plain TensorFlow.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", section 3.2. The features z of an image x are p entries
of the gradient of the model's FIRST logit,

  z(x) = d f_1(x; theta) / d theta  at the entries of a mask,

at fixed weights theta whose head is drawn, so that all logits have the same
distribution. The mask is drawn too. Entries are numbered in the concatenation
of all weights, each flattened, in the order of
`models.model_shapes.weight_shapes`. Head columns other than the first do not
reach the first logit and are never features.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.image_models import initial_weights
from models.layers import layers_of
from models.model_shapes import weight_shapes
from models.taps import by_position, inputs_by_position, tapped_logits
from tff_fedfish.data import randomness

Features = Callable[[Sequence[tf.Tensor], Any], tf.Tensor]
"""(weights in the order of `weight_shapes`, x) -> float32 [rows, p]."""


def feature_mask(
  shape: ImageModelConfig, *, num_features: int, model_seed: int
) -> np.ndarray:
  """Draws the entries of the gradient that are features.

  Returns:
    Int64 [num_features], ascending; all candidates if there are fewer.
  """
  entries = _candidates(shape)
  if len(entries) <= num_features:
    return entries
  generator = randomness.generator('tct_mask', model_seed)
  return np.sort(entries[generator.permutation(len(entries))[:num_features]])


def _candidates(shape):
  """Returns the entries that can be features: body and first head column."""
  *_, head = layers_of(shape)
  num_before, found = 0, []
  for name, sizes in weight_shapes(shape).items():
    size = math.prod(sizes)
    step = head.fan_out if name in (head.kernel, head.bias) else 1
    found.append(num_before + np.arange(0, size, step))
    num_before += size
  return np.concatenate(found)


def with_drawn_head(
  shape: ImageModelConfig, weights: Sequence[tf.Tensor], model_seed: int
) -> tuple[tf.Tensor, ...]:
  """Returns the weights, in the order of `weight_shapes`, with a drawn head.

  It is drawn as the model's initial one is.
  """
  *_, head = layers_of(shape)
  drawn = initial_weights(shape, randomness.seed_of('tct_head', model_seed))
  return tuple(
    of_head if name in (head.kernel, head.bias) else weight
    for name, weight, of_head in zip(
      weight_shapes(shape), weights, drawn, strict=True
    )
  )


def mask_of(config: Any) -> np.ndarray:
  """Returns the `feature_mask` of a config."""
  return feature_mask(
    config.model_shape(),
    num_features=config.algorithm.num_features,
    model_seed=config.seeds.model_seed,
  )


def network_of(config: Any, weights: Any) -> tuple[tf.Tensor, ...]:
  """Returns a network's trainable weights with the head drawn."""
  return with_drawn_head(
    config.model_shape(), weights.trainable, config.seeds.model_seed
  )


def build_features(model: Any, mask: np.ndarray) -> Features:
  """Builds the features of a batch; the model is not in training.

  One backward pass makes the gradients of all rows. The gradient of each
  convolution's kernel is in memory for all rows at once. `model` is a
  classifier's ModelSpec, `mask` as `feature_mask` returns it.
  """
  parts = tuple(_parts(model.shape, mask))

  @tf.function(autograph=False, reduce_retracing=True)
  def features(weights, x):
    with tf.GradientTape() as tape:
      logits, inputs, outputs = tapped_logits(model, weights, x, tape)
      # Rows do not meet: their sum has the gradient of each.
      first_logits = tf.reduce_sum(logits[:, 0])
    gradients = tape.gradient(first_logits, outputs)
    columns = [
      _entries(layer, is_bias, indices, inputs, gradients)
      for layer, is_bias, indices in parts
    ]
    return tf.transpose(tf.concat(columns, axis=0))

  return features


def _parts(shape, mask):
  """Yields (layer, whether the weight is its bias, entries of the weight)."""
  of_names = {
    name: (layer, name == layer.bias)
    for layer in layers_of(shape)
    for name in (layer.kernel, layer.bias)
  }
  num_before = 0
  for name, sizes in weight_shapes(shape).items():
    start, num_before = num_before, num_before + math.prod(sizes)
    first, last = np.searchsorted(mask, [start, num_before])
    if first < last:
      yield *of_names[name], (mask[first:last] - start).astype(np.int32)


def _entries(layer, is_bias, indices, inputs, gradients):
  """Returns entries of a weight's gradient, float32 [entries, rows].

  Rows are last, so that a gather copies whole columns.
  """
  # [rows, positions, fan_out]
  g = by_position(gradients[layer.name])
  if is_bias:
    return tf.gather(tf.transpose(tf.reduce_sum(g, axis=1)), indices)
  a = inputs_by_position(layer, inputs[layer.name])
  if layer.kind == 'scale':
    return tf.gather(tf.transpose(tf.reduce_sum(a * g, axis=1)), indices)
  if layer.kind == 'matrix':
    rows, columns = np.divmod(indices, layer.fan_out)
    a, g = (tf.transpose(values[:, 0]) for values in (a, g))
    return tf.gather(a, rows) * tf.gather(g, columns)
  # [rows, fan_in, fan_out]
  kernels = tf.matmul(a, g, transpose_a=True)
  flat = tf.reshape(kernels, [-1, layer.fan_in * layer.fan_out])
  return tf.gather(tf.transpose(flat), indices)
