"""The CNN of the EMNIST experiments, as pure functions of explicit weights.

Dhawan et al. (2024), FedFish, appendix; the network of Reddi et al. (2021),
"Adaptive federated optimization": two valid 3x3 convolutions, max pooling, one
hidden layer, ReLUs, and dropout before each of the two dense layers.

Weights are a flat tuple in the order of `weight_shapes`, float32.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from models.emnist_cnn_shapes import IMAGE_SHAPE, weight_shapes

_POOLED_DROPOUT = 0.25
_HIDDEN_DROPOUT = 0.5


def initial_weights(
  num_classes: int,
  image_shape: tuple[int, int, int] = IMAGE_SHAPE,
  *,
  seed: int | tf.Tensor,
) -> tuple[tf.Tensor, ...]:
  """Draws weights as a function of the seed; ops of the graph, no constants.

  Kernels are uniform as in Glorot & Bengio (2010): within sqrt(6 / (fan in +
  fan out)) of 0. Biases begin at 0.

  Args:
    num_classes: As in `weight_shapes`.
    image_shape: Height, width and channels.
    seed: The model seed; scalar int.

  Returns:
    Float32 tensors in the order of `weight_shapes`.
  """
  weights = []
  for index, (name, shape) in enumerate(
    weight_shapes(num_classes, image_shape).items()
  ):
    if name.endswith('/bias'):
      weights.append(tf.zeros(shape))
      continue
    *window, fan_in, fan_out = shape
    limit = math.sqrt(6 / (math.prod(window) * (fan_in + fan_out)))
    weights.append(
      tf.random.stateless_uniform(
        shape, seed=[seed, index], minval=-limit, maxval=limit
      )
    )
  return tuple(weights)


def logits(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
) -> tf.Tensor:
  """Returns the logits of a batch.

  Args:
    weights: As `initial_weights` returns them.
    images: Float32 [batch, height, width, channels], the last three static.
    dropout_seed: Int32 [2] in training, another one at every step; None: no
      dropout, as in evaluation.

  Returns:
    Float32 [batch, num_classes].
  """
  (
    *convolutions,
    hidden_kernel,
    hidden_bias,
    head_kernel,
    head_bias,
  ) = weights
  outputs = images
  for kernel, bias in (convolutions[:2], convolutions[2:]):
    outputs = tf.nn.conv2d(outputs, kernel, strides=1, padding='VALID')
    outputs = tf.nn.relu(outputs + bias)
  outputs = tf.nn.max_pool2d(outputs, ksize=2, strides=2, padding='VALID')
  outputs = _dropout(outputs, _POOLED_DROPOUT, dropout_seed, layer=0)
  # [batch, rows, columns, channels] -> [batch, features]
  outputs = tf.reshape(outputs, [-1, hidden_kernel.shape[0]])
  outputs = tf.nn.relu(tf.matmul(outputs, hidden_kernel) + hidden_bias)
  outputs = _dropout(outputs, _HIDDEN_DROPOUT, dropout_seed, layer=1)
  return tf.matmul(outputs, head_kernel) + head_bias


def _dropout(inputs, rate, seed, layer):
  if seed is None:
    return inputs
  # One stream for each layer, or both would drop by the same pattern.
  seed = tf.random.experimental.stateless_fold_in(seed, layer)
  return tf.nn.experimental.stateless_dropout(inputs, rate, seed)
