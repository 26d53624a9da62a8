"""The image models by name, with what becomes of their images."""

import dataclasses
import types
from collections.abc import Callable, Mapping

import tensorflow as tf

from models import emnist_cnn, image_augmentation, resnet


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageClassifier:
  """Pure functions of one model. In training: augment, normalize, logits."""

  weight_shapes: Callable[..., dict[str, tuple[int, ...]]]
  """(num_classes, image_shape) -> the name and shape of every weight."""
  initial_weights: Callable[..., tuple[tf.Tensor, ...]]
  """(num_classes, image_shape, *, seed) -> float32 weights in that order."""
  logits: Callable[..., tf.Tensor]
  """(weights, images, *, dropout_seed=None) -> float32 [batch, num_classes]."""
  augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  """(uint8 images, int32 [2] seed) -> uint8 images; in training only."""
  normalize: Callable[[tf.Tensor], tf.Tensor]
  """uint8 images -> what `logits` takes, float32 of the same shape."""
  image_shape: tuple[int, int, int]
  """Height, width and channels of the images it was published for."""


def _keep(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  del seed  # EMNIST is trained on as it is.
  return images


def _to_unit_range(images: tf.Tensor) -> tf.Tensor:
  return tf.cast(images, tf.float32) / 255.0


def _standardize(images: tf.Tensor) -> tf.Tensor:
  # Each image by its own mean and deviation: no statistics of other clients.
  return tf.image.per_image_standardization(tf.cast(images, tf.float32))


IMAGE_CLASSIFIERS: Mapping[str, ImageClassifier] = types.MappingProxyType(
  {
    'emnist_cnn': ImageClassifier(
      weight_shapes=emnist_cnn.weight_shapes,
      initial_weights=emnist_cnn.initial_weights,
      logits=emnist_cnn.logits,
      augment=_keep,
      normalize=_to_unit_range,
      image_shape=emnist_cnn.IMAGE_SHAPE,
    ),
    'resnet18': ImageClassifier(
      weight_shapes=resnet.weight_shapes,
      initial_weights=resnet.initial_weights,
      logits=resnet.logits,
      augment=image_augmentation.random_crop_and_flip,
      normalize=_standardize,
      image_shape=resnet.IMAGE_SHAPE,
    ),
  }
)
"""Name in a config -> model."""
