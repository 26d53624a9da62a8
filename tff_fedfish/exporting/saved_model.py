"""A model as a TensorFlow SavedModel: graphs and weights, no Python."""

import logging
import os
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from models import transformer
from models.image_classifier import IMAGE_CLASSIFIERS
from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape
from models.transformer_config import TransformerConfig


def write_saved_model(
  directory: str | os.PathLike,
  shape: ModelShape,
  weights: Mapping[str, np.ndarray],
  *,
  class_logits: Callable[[tuple[tf.Tensor, ...], tf.Tensor], tf.Tensor]
  | None = None,
) -> None:
  """Writes a SavedModel.

  A language model has the functions `next_token_logits` and `row_losses`, an
  image model `class_logits`. They are also signatures, and the logits are
  'serving_default'.

  Args:
    directory: Directory to create. It is written file by file, not atomically.
    shape: The model's shape, which says whether it is for text or images.
    weights: By the names and in the order of `weight_shapes(shape)`.
    class_logits: (weights, images as stored) -> logits, of an image model whose
      weights are others. None: they are those.

  Raises:
    tf.errors.OpError: If it cannot be written, such as on a full disk.
  """
  is_of_images = isinstance(shape, ImageModelConfig)
  module = tf.Module('image_model' if is_of_images else 'language_model')
  module.model_weights = [
    tf.Variable(value, trainable=False, name=name)
    for name, value in weights.items()
  ]
  if is_of_images:
    functions = _image_functions(shape, module.model_weights, class_logits)
  else:
    functions = _language_functions(shape, module.model_weights)
  for name, function in functions.items():
    setattr(module, name, function)
  logits, *_ = functions.values()
  # TensorFlow remarks that it wrote assets, of which none exist.
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel(logging.WARNING)
  try:
    tf.saved_model.save(
      module,
      os.fspath(directory),
      signatures={'serving_default': logits, **functions},
      # For inference: the backward passes would be graphs of their own.
      options=tf.saved_model.SaveOptions(experimental_custom_gradients=False),
    )
  finally:
    logger.setLevel(level)


def _language_functions(
  config: TransformerConfig, weights: list[tf.Variable]
) -> dict[str, Callable]:
  """Returns the functions of a language model by name."""

  @tf.function(
    input_signature=[tf.TensorSpec([None, None], tf.int32, name='tokens')]
  )
  def next_token_logits(tokens: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns float32 [batch, length, vocabulary] scores of the next tokens."""
    length = tf.shape(tokens)[1]
    padded = _fill_up(tokens, config.sequence_length)
    logits = transformer.logits(config, _tensors(weights), padded)
    return {'logits': logits[:, :length]}

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, None], tf.int32, name='tokens'),
      tf.TensorSpec([None], tf.int32, name='num_targets'),
    ]
  )
  def row_losses(
    tokens: tf.Tensor, num_targets: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Returns the mean loss, in nats per token, of each row's first targets.

    Args:
      tokens: Int32 [batch, length + 1]; those after a row's last target are
        ignored.
      num_targets: Int32 [batch], 0 to length. The loss of 0 targets is 0.
    """
    max_targets = config.sequence_length
    padded = _fill_up(tokens, max_targets + 1)
    checked = tf.debugging.assert_less_equal(
      num_targets,
      tf.shape(tokens)[1] - 1,
      message='`num_targets` must be less than the length of `tokens`.',
    )
    with tf.control_dependencies([checked]):
      mask = tf.sequence_mask(num_targets, max_targets, dtype=tf.float32)
    losses, _ = transformer.next_token_losses(config, _tensors(weights), padded)
    return {
      'loss': tf.math.divide_no_nan(
        tf.reduce_sum(losses * mask, axis=1), tf.reduce_sum(mask, axis=1)
      )
    }

  return {'next_token_logits': next_token_logits, 'row_losses': row_losses}


def _image_functions(
  config: ImageModelConfig,
  weights: list[tf.Variable],
  logits_of: Callable[..., tf.Tensor] | None,
) -> dict[str, Callable]:
  classifier = IMAGE_CLASSIFIERS[config.name]

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, *config.image_shape], tf.uint8, name='images')
    ]
  )
  def class_logits(images: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns float32 [batch, num_classes] scores of images as stored."""
    if logits_of is not None:
      return {'logits': logits_of(_tensors(weights), images)}
    inputs = classifier.normalize(images)
    return {'logits': classifier.logits(_tensors(weights), inputs)}

  return {'class_logits': class_logits}


def _tensors(weights):
  return tuple(tf.convert_to_tensor(weight) for weight in weights)


def _fill_up(tokens, max_length):
  """Returns [batch, max_length], static, as the transformer needs it."""
  missing = max_length - tf.shape(tokens)[1]
  checked = tf.debugging.assert_non_negative(
    missing, message=f'`tokens` must have at most {max_length} columns.'
  )
  # Padding does not change the results of the tokens before.
  with tf.control_dependencies([checked]):
    padded = tf.pad(tokens, [[0, 0], [0, missing]])
  return tf.ensure_shape(padded, [None, max_length])
