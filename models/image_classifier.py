"""The image models by name, with what becomes of their images."""

import dataclasses
import functools
import types
from collections.abc import Callable, Mapping

import tensorflow as tf

from models import emnist_cnn, lenet, linear, resnet
from models.image_model_config import (
  CIFAR_SHAPE,
  EMNIST_SHAPE,
  ImageModelConfig,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassifier:
  """Pure functions of one model. In training: augment, normalize, logits."""

  draw_kernel: Callable[..., tf.Tensor]
  """(name, shape, seed) -> initial float32 values of a weight that is neither
  a scale nor a bias."""
  logits: Callable[..., tf.Tensor]
  """(weights, images, *, dropout_seed=None, tap=None) -> float32 [batch,
  num_classes]; see `models.layers` for the tap."""
  features: Callable[..., tf.Tensor]
  """(weights, images, *, dropout_seed=None) -> float32 [batch, width]: the
  input of the last layer before its dropout. A model of one layer has its
  logits here."""
  augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  """(uint8 images, int32 [2] seed) -> uint8 images; in training only."""
  normalize: Callable[[tf.Tensor], tf.Tensor]
  """uint8 images -> what `logits` takes, float32 of the same shape."""
  image_shape: tuple[int, int, int]
  """Height, width and channels of the images it was published for."""


def initial_weights(
  config: ImageModelConfig, seed: int | tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Draws weights as a function of the seed; ops of the graph, no constants.

  Norms begin as the identity, biases at 0.

  Args:
    config: The model's shape.
    seed: The model seed; scalar int.

  Returns:
    Float32 tensors in the order of `config.weight_shapes()`.
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

  An image is padded with zeros on all sides (32 x 32 pixels to 36 x 36, as
  Dhawan et al. (2024), FedFish, do with CIFAR-100), a window of the old size
  is cut out at a uniformly drawn place, and with probability 1/2 its columns
  are reversed. Every image of the batch is drawn for on its own.

  Args:
    images: [batch, height, width, channels] of any type, the last three
      static; not normalized, so that 0 is black.
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


def _standardize(images: tf.Tensor) -> tf.Tensor:
  # Each image by its own mean and deviation: no statistics of other clients.
  return tf.image.per_image_standardization(tf.cast(images, tf.float32))


def _scale_pixels(images: tf.Tensor) -> tf.Tensor:
  return tf.cast(images, tf.float32) / 255.0


_OF_EMNIST = dict(
  draw_kernel=emnist_cnn.draw_kernel,
  # EMNIST is trained on as it is, and so are MNIST and Fashion-MNIST.
  augment=lambda images, seed: images,
  normalize=_scale_pixels,
  image_shape=EMNIST_SHAPE,
)

IMAGE_CLASSIFIERS: Mapping[str, ImageClassifier] = types.MappingProxyType(
  {
    'emnist_cnn': ImageClassifier(
      logits=emnist_cnn.logits, features=emnist_cnn.features, **_OF_EMNIST
    ),
    'resnet18': ImageClassifier(
      draw_kernel=resnet.draw_kernel,
      logits=resnet.logits,
      features=resnet.features,
      augment=random_crop_and_flip,
      normalize=_standardize,
      image_shape=CIFAR_SHAPE,
    ),
    'linear': ImageClassifier(
      logits=linear.logits, features=linear.logits, **_OF_EMNIST
    ),
    'lenet': ImageClassifier(
      logits=lenet.logits, features=lenet.features, **_OF_EMNIST
    ),
    'fed_net_cnn': ImageClassifier(
      logits=lenet.logits,
      features=lenet.features,
      draw_kernel=emnist_cnn.draw_kernel,
      # As FedFisher trains on CIFAR-10.
      augment=functools.partial(random_crop_and_flip, padding=4),
      normalize=_scale_pixels,
      image_shape=CIFAR_SHAPE,
    ),
  }
)
"""Name in a config -> model."""
