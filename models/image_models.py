"""The classifiers of images, as pure functions of explicit weights.

emnist_cnn: two valid 3x3 convolutions, max pooling and one hidden layer, with
  dropout before both dense layers. Reddi et al. (2021), "Adaptive federated
  optimization"; Dhawan et al. (2024), FedFish, appendix.
resnet18: basic blocks of 64, 128, 256 and 512 channels behind one 3x3
  convolution without pooling, the stem for CIFAR. He et al. (2016), "Deep
  residual learning for image recognition".
linear: logits = x W + b, with x the pixels. Karimireddy et al. (2020),
  SCAFFOLD, section 7.
lenet, fed_net_cnn: two valid 5x5 convolutions, each with max pooling, and two
  hidden layers. There are no biases, as in the authors' code. Jhunjhunwala et
  al. (2024), FedFisher, section 5.1, after LeCun et al. (1998).

Batch statistics of clients with few classes differ, so in `resnet18` GroupNorm
(Wu & He, 2018) stands where BatchNorm stood, as Hsieh et al. (2020), "The
non-IID data quagmire of decentralized machine learning", propose. It has the 32
groups of Wu & He, which TFF's own ResNet-18 has too.

Weights are float32 in the order of `ImageModelConfig.weight_shapes`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from models.image_model_config import (
  CHAINS,
  CIFAR_SHAPE,
  EMNIST_SHAPE,
  RESNET_NORM_GROUPS,
  Chain,
  ImageModelConfig,
  resnet_blocks,
)
from models.layers import Tap

_NORM_EPSILON = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassifier:
  """Pure functions of one model. In training: augment, normalize, logits."""

  chain: Chain | None = None
  """Its layers; None: those of `resnet18`."""
  draw_kernel: Callable[..., tf.Tensor]
  """(name, shape, seed) -> initial float32 values of a weight that is neither
  a scale nor a bias."""
  augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  """(uint8 images, int32 [2] seed) -> uint8 images; in training only."""
  normalize: Callable[[tf.Tensor], tf.Tensor]
  """uint8 images -> what `logits` takes, float32 of the same shape."""
  image_shape: tuple[int, int, int]
  """Height, width and channels of the images it was published for."""

  def logits(
    self,
    weights: Sequence[tf.Tensor],
    images: tf.Tensor,
    *,
    dropout_seed: tf.Tensor | None = None,
    tap: Tap = lambda name, inputs, preactivations: preactivations,
  ) -> tf.Tensor:
    """Returns the logits of a batch, float32 [batch, num_classes].

    Args:
      weights: Float32, in the order of `ImageModelConfig.weight_shapes`.
      images: Float32 [batch, height, width, channels], the last three static.
      dropout_seed: Int32 [2] in training, another one at every step; None: no
        dropout, as in evaluation.
      tap: See `models.layers`.
    """
    chain = self.chain or Chain({}, has_biases=True)
    hidden = self._hidden(weights, images, dropout_seed, tap)
    hidden = _dropout(hidden, chain.dropouts[1], dropout_seed, layer=1)
    if chain.has_biases:
      *_, kernel, bias = weights
      outputs = tf.matmul(hidden, kernel) + bias
    else:
      outputs = tf.matmul(hidden, weights[-1])
    return tap('head', hidden, outputs)

  def features(
    self, weights: Sequence[tf.Tensor], images: tf.Tensor
  ) -> tf.Tensor:
    """Returns the last layer's input in evaluation, float32 [batch, width].

    A model of one layer has its logits here. See `logits` for the arguments.
    """
    if self.chain == CHAINS['linear']:
      return self.logits(weights, images)
    return self._hidden(weights, images, None, lambda name, a, z: z)

  def _hidden(self, weights, images, dropout_seed, tap):
    """Returns the input of the last layer, the head, before its dropout."""
    if self.chain is None:
      return _resnet(weights, images, tap)
    return _chain(self.chain, weights, images, dropout_seed, tap)


def initial_weights(
  config: ImageModelConfig, seed: int | tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Draws weights as a function of the seed; ops of the graph, no constants.

  Norms begin as the identity, biases at 0. Float32, in the order of
  `config.weight_shapes()`.
  """
  draw_kernel = IMAGE_CLASSIFIERS[config.name].draw_kernel
  weights = []
  for index, (name, shape) in enumerate(config.weight_shapes().items()):
    if name.endswith('/scale'):
      weights.append(tf.ones(shape))
    elif name.endswith('/bias'):
      weights.append(tf.zeros(shape))
    else:
      weights.append(draw_kernel(name, shape, [seed, index]))
  return tuple(weights)


def random_crop_and_flip(
  images: tf.Tensor, seed: tf.Tensor, *, padding: int = 2
) -> tf.Tensor:
  """Shifts every image by some pixels, and mirrors about half of them.

  For each image by itself: it is padded with zeros on all sides, a window of
  the old size is cut out at a uniformly drawn place, and with probability 1/2
  its columns are reversed, as Dhawan et al. (2024), FedFish, do with CIFAR-100.

  Args:
    images: [batch, height, width, channels] of any type, the last three
      static; 0 is black.
    seed: Int32 [2], another one at every step.
    padding: Pixels added on each side, >= 0.

  Returns:
    Type and shape of `images`.
  """
  batch = tf.shape(images)[0]
  height, width = images.shape[1:3]
  place_seed, flip_seed = tf.unstack(
    tf.random.experimental.stateless_split(seed, 2)
  )
  # [batch, 2]: the row and the column at which a window begins.
  places = tf.random.stateless_uniform(
    [batch, 2], place_seed, minval=0, maxval=2 * padding + 1, dtype=tf.int32
  )
  flips = tf.random.stateless_uniform([batch, 1], flip_seed) < 0.5
  rows = places[:, :1] + tf.range(height)
  columns = places[:, 1:] + tf.where(
    flips, tf.range(width - 1, -1, -1), tf.range(width)
  )
  margin = [padding, padding]
  padded = tf.pad(images, [[0, 0], margin, margin, [0, 0]])
  cropped = tf.gather(padded, rows, axis=1, batch_dims=1)
  cropped = tf.gather(cropped, columns, axis=2, batch_dims=1)
  return tf.ensure_shape(cropped, images.shape)


def group_norm(
  inputs: tf.Tensor, num_groups: int = RESNET_NORM_GROUPS
) -> tf.Tensor:
  """Normalizes every image's groups of channels to mean 0 and variance 1.

  Inputs are float32 [batch, height, width, channels], the last three static;
  group 0 is the first channels / num_groups of them, and so on.
  """
  height, width, channels = inputs.shape[1:]
  grouped = tf.reshape(
    inputs, [-1, height, width, num_groups, channels // num_groups]
  )
  mean, variance = tf.nn.moments(grouped, axes=[1, 2, 4], keepdims=True)
  grouped = (grouped - mean) * tf.math.rsqrt(variance + _NORM_EPSILON)
  return tf.reshape(grouped, [-1, height, width, channels])


def _chain(chain, weights, images, dropout_seed, tap):
  outputs, kernels = images, weights[:: 1 + chain.has_biases]
  for index, (name, kernel) in enumerate(
    zip((*chain.widths, 'head'), kernels, strict=True)
  ):
    is_convolution = len(kernel.shape) == 4
    if len(outputs.shape) == 4 and not is_convolution:
      outputs = _dropout(outputs, chain.dropouts[0], dropout_seed, layer=0)
      # [batch, rows, columns, channels] -> [batch, features]
      outputs = tf.reshape(outputs, [-1, kernel.shape[0]])
    if name == 'head':
      return outputs
    if is_convolution:
      computed = tf.nn.conv2d(outputs, kernel, strides=1, padding='VALID')
    else:
      computed = tf.matmul(outputs, kernel)
    if chain.has_biases:
      computed += weights[2 * index + 1]
    outputs = tf.nn.relu(tap(name, outputs, computed))
    if name in chain.pooled:
      outputs = tf.nn.max_pool2d(outputs, ksize=2, strides=2, padding='VALID')


def _dropout(inputs, rate, seed, layer):
  if seed is None or not rate:
    return inputs
  # One stream for each layer, or both would drop by the same pattern.
  seed = tf.random.experimental.stateless_fold_in(seed, layer)
  return tf.nn.experimental.stateless_dropout(inputs, rate, seed)


def _resnet(weights, images, tap):
  # The names depend on neither the classes nor the images.
  shape = ImageModelConfig(
    name='resnet18', num_classes=1, image_shape=CIFAR_SHAPE
  )
  named = dict(zip(shape.weight_shapes(), weights, strict=True))

  def convolve(name, inputs, stride=1):
    outputs = tf.nn.conv2d(
      inputs, named[f'{name}/kernel'], strides=stride, padding='SAME'
    )
    normalized = group_norm(tap(name, inputs, outputs))
    scale, bias = named[f'{name}/norm/scale'], named[f'{name}/norm/bias']
    return tap(f'{name}/norm', normalized, normalized * scale + bias)

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


def _draw_glorot(unused_name, shape, seed):
  """Uniform within sqrt(6 / (fan in + fan out)); Glorot & Bengio (2010)."""
  *window, fan_in, fan_out = shape
  limit = math.sqrt(6 / (math.prod(window) * (fan_in + fan_out)))
  return tf.random.stateless_uniform(
    shape, seed=seed, minval=-limit, maxval=limit
  )


def _draw_he(name, shape, seed):
  """Normal of variance 2 / fan in (He et al., 2015), the head's 1 / fan in."""
  gain = 1 if name == 'head/kernel' else 2
  stddev = math.sqrt(gain / math.prod(shape[:-1]))
  return tf.random.stateless_normal(shape, seed=seed, stddev=stddev)


def _standardize(images):
  # Each image by its own mean and deviation: no statistics of other clients.
  return tf.image.per_image_standardization(tf.cast(images, tf.float32))


def _scale_pixels(images):
  return tf.cast(images, tf.float32) / 255.0


_OF_EMNIST = dict(
  draw_kernel=_draw_glorot,
  # EMNIST is trained on as it is, and so are MNIST and Fashion-MNIST.
  augment=lambda images, seed: images,
  normalize=_scale_pixels,
  image_shape=EMNIST_SHAPE,
)

IMAGE_CLASSIFIERS: Mapping[str, ImageClassifier] = {
  'emnist_cnn': ImageClassifier(chain=CHAINS['emnist_cnn'], **_OF_EMNIST),
  'resnet18': ImageClassifier(
    draw_kernel=_draw_he,
    augment=random_crop_and_flip,
    normalize=_standardize,
    image_shape=CIFAR_SHAPE,
  ),
  'linear': ImageClassifier(chain=CHAINS['linear'], **_OF_EMNIST),
  'lenet': ImageClassifier(chain=CHAINS['lenet'], **_OF_EMNIST),
  'fed_net_cnn': ImageClassifier(
    chain=CHAINS['fed_net_cnn'],
    draw_kernel=_draw_glorot,
    # As FedFisher trains on CIFAR-10.
    augment=functools.partial(random_crop_and_flip, padding=4),
    normalize=_scale_pixels,
    image_shape=CIFAR_SHAPE,
  ),
}
"""Name in a config -> model."""
