"""The CNN of the EMNIST experiments, as pure functions of explicit weights.

Dhawan et al. (2024), FedFish, appendix; the network of Reddi et al. (2021),
"Adaptive federated optimization": two valid 3x3 convolutions, max pooling, one
hidden layer, ReLUs, and dropout before each of the two dense layers.

Weights are a flat tuple in the order of `image_model_config.emnist_cnn_shapes`.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from models.layers import Tap, tapped

_POOLED_DROPOUT = 0.25
_HIDDEN_DROPOUT = 0.5


def draw_kernel(
  unused_name: str, shape: tuple[int, ...], seed: Sequence[int | tf.Tensor]
) -> tf.Tensor:
  """Draws a kernel uniformly as in Glorot & Bengio (2010).

  Its entries are within sqrt(6 / (fan in + fan out)) of 0.
  """
  *window, fan_in, fan_out = shape
  limit = math.sqrt(6 / (math.prod(window) * (fan_in + fan_out)))
  return tf.random.stateless_uniform(
    shape, seed=seed, minval=-limit, maxval=limit
  )


def logits(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
  tap: Tap | None = None,
) -> tf.Tensor:
  """Returns the logits of a batch.

  Args:
    weights: Float32, in the order of `emnist_cnn_shapes`.
    images: Float32 [batch, height, width, channels], the last three static.
    dropout_seed: Int32 [2] in training, another one at every step; None: no
      dropout, as in evaluation.
    tap: See `models.layers`; None: there is none.

  Returns:
    Float32 [batch, num_classes].
  """
  *_, head_kernel, head_bias = weights
  outputs = features(weights, images, dropout_seed=dropout_seed, tap=tap)
  outputs = _dropout(outputs, _HIDDEN_DROPOUT, dropout_seed, layer=1)
  return tapped(
    tap, 'head', outputs, tf.matmul(outputs, head_kernel) + head_bias
  )


def features(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
  tap: Tap | None = None,
) -> tf.Tensor:
  """Returns the hidden layer before its dropout, float32 [batch, 128].

  See `logits` for the arguments. With a seed the dropout before the hidden
  layer is applied.
  """
  *convolutions, hidden_kernel, hidden_bias, _, _ = weights
  outputs = images
  for name, (kernel, bias) in (
    ('conv_1', convolutions[:2]),
    ('conv_2', convolutions[2:]),
  ):
    convolved = tf.nn.conv2d(outputs, kernel, strides=1, padding='VALID')
    outputs = tf.nn.relu(tapped(tap, name, outputs, convolved + bias))
  outputs = tf.nn.max_pool2d(outputs, ksize=2, strides=2, padding='VALID')
  outputs = _dropout(outputs, _POOLED_DROPOUT, dropout_seed, layer=0)
  # [batch, rows, columns, channels] -> [batch, features]
  outputs = tf.reshape(outputs, [-1, hidden_kernel.shape[0]])
  hidden = tf.matmul(outputs, hidden_kernel) + hidden_bias
  return tf.nn.relu(tapped(tap, 'hidden', outputs, hidden))


def _dropout(inputs, rate, seed, layer):
  if seed is None:
    return inputs
  # One stream for each layer, or both would drop by the same pattern.
  seed = tf.random.experimental.stateless_fold_in(seed, layer)
  return tf.nn.experimental.stateless_dropout(inputs, rate, seed)
