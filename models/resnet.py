"""ResNet-18 with GroupNorm for images of 32 x 32, as pure functions.

He et al. (2016), "Deep residual learning for image recognition", with their
stem for CIFAR (one 3x3 convolution, no pooling) and basic blocks of 64, 128,
256 and 512 channels. Batch statistics of clients with few classes differ, so
GroupNorm (Wu & He, 2018) stands where BatchNorm stood, as Hsieh et al. (2020),
"The non-IID data quagmire of decentralized machine learning", propose. It has
the 32 groups of Wu & He, which TFF's own ResNet-18 has too.

Weights are a flat tuple in the order of `resnet_shapes`, float32.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from models import image_model_config
from models.image_model_config import resnet_blocks, resnet_shapes

# Groups of channels that are normalized together.
_NUM_GROUPS = image_model_config.RESNET_NORM_GROUPS
_NORM_EPSILON = 1e-5


def draw_kernel(
  name: str, shape: tuple[int, ...], seed: Sequence[int | tf.Tensor]
) -> tf.Tensor:
  """Draws a kernel from a normal distribution around 0.

  The variance of a convolution's is 2 / fan in (He et al., 2015), that of the
  head's is 1 / fan in.
  """
  gain = 1 if name == 'head/kernel' else 2
  stddev = math.sqrt(gain / math.prod(shape[:-1]))
  return tf.random.stateless_normal(shape, seed=seed, stddev=stddev)


def logits(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
) -> tf.Tensor:
  """Returns the logits of a batch.

  Args:
    weights: Float32, in the order of `resnet_shapes`.
    images: Float32 [batch, height, width, channels], the last three static;
      normalized, see `image_classifier`.
    dropout_seed: Not used, as there is no dropout; taken so that all image
      models are called alike.

  Returns:
    Float32 [batch, num_classes].
  """
  *_, head_kernel, head_bias = weights
  pooled = features(weights, images, dropout_seed=dropout_seed)
  return tf.matmul(pooled, head_kernel) + head_bias


def features(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
) -> tf.Tensor:
  """Returns the pooled feature map, float32 [batch, channels]; see `logits`."""
  del dropout_seed
  # The names depend on neither the classes nor the images.
  named = dict(zip(resnet_shapes(1), weights, strict=True))

  def convolve(name, inputs, stride=1):
    outputs = tf.nn.conv2d(
      inputs, named[f'{name}/kernel'], strides=stride, padding='SAME'
    )
    return group_norm(
      outputs, named[f'{name}/norm/scale'], named[f'{name}/norm/bias']
    )

  outputs = tf.nn.relu(convolve('stem', images))
  for block in resnet_blocks():
    shortcut = outputs
    if block.projects:
      shortcut = convolve(f'{block.name}/shortcut', outputs, block.stride)
    outputs = convolve(f'{block.name}/conv_1', outputs, block.stride)
    outputs = convolve(f'{block.name}/conv_2', tf.nn.relu(outputs))
    outputs = tf.nn.relu(outputs + shortcut)
  # [batch, rows, columns, channels] -> [batch, channels]
  return tf.reduce_mean(outputs, axis=[1, 2])


def group_norm(
  inputs: tf.Tensor,
  scale: tf.Tensor,
  bias: tf.Tensor,
  *,
  num_groups: int = _NUM_GROUPS,
) -> tf.Tensor:
  """Normalizes every image's groups of channels to mean 0 and variance 1.

  Args:
    inputs: Float32 [batch, height, width, channels], the last three static;
      group 0 is the first channels / num_groups of them, and so on.
    scale: Float32 [channels], multiplied with what was normalized.
    bias: Float32 [channels], added to it.
    num_groups: Groups; a divisor of the channels.

  Returns:
    Float32, shaped like `inputs`.

  Raises:
    ValueError: If the channels do not divide into the groups.
  """
  height, width, channels = inputs.shape[1:]
  if channels % num_groups:
    raise ValueError(
      f'`num_groups` must divide the {channels} channels, found {num_groups}.'
    )
  grouped = tf.reshape(
    inputs, [-1, height, width, num_groups, channels // num_groups]
  )
  mean, variance = tf.nn.moments(grouped, axes=[1, 2, 4], keepdims=True)
  grouped = (grouped - mean) * tf.math.rsqrt(variance + _NORM_EPSILON)
  outputs = tf.reshape(grouped, [-1, height, width, channels])
  return outputs * scale + bias
