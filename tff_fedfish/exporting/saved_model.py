"""A model's logits as a TensorFlow SavedModel: graph and weights, no Python."""

import logging
import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from models import transformer
from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from models.model_shapes import ModelShape


def write_saved_model(
  directory: str | os.PathLike,
  shape: ModelShape,
  weights: Mapping[str, np.ndarray],
) -> None:
  """Writes a SavedModel whose only signature is 'serving_default'.

  It returns float32 `logits`. A language model takes int32 `tokens` [batch,
  length], an image model float32 `images` [batch, height, width, channels], as
  `ImageClassifier.normalize` returns them.
  """
  of_images, module = isinstance(shape, ImageModelConfig), tf.Module()
  module.variables_in_order = [
    tf.Variable(value, trainable=False, name=name)
    for name, value in weights.items()
  ]
  spec = tf.TensorSpec([None, None], tf.int32, name='tokens')
  if of_images:
    spec = tf.TensorSpec([None, *shape.image_shape], tf.float32, name='images')

  @tf.function(input_signature=[spec])
  def logits(inputs):
    values = tuple(map(tf.convert_to_tensor, module.variables_in_order))
    if of_images:
      return {'logits': IMAGE_CLASSIFIERS[shape.name].logits(values, inputs)}
    length, limit = tf.shape(inputs)[1], shape.sequence_length
    message = f'`tokens` must have at most {limit} columns.'
    # Padding fails with words of its own where it runs before the check.
    with tf.control_dependencies(
      [tf.debugging.assert_less_equal(length, limit, message)]
    ):
      # The transformer takes one length; what follows a token is of no account.
      padded = tf.pad(inputs, [[0, 0], [0, limit - length]])
    padded = tf.ensure_shape(padded, [None, limit])
    return {'logits': transformer.logits(shape, values, padded)[:, :length]}

  logger = tf.get_logger()
  level = logger.level
  # TensorFlow remarks that it wrote assets, of which none exist.
  logger.setLevel(logging.WARNING)
  # For inference: the backward passes would be graphs of their own.
  options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
  signatures = {'serving_default': logits}
  try:
    tf.saved_model.save(module, os.fspath(directory), signatures, options)
  finally:
    logger.setLevel(level)
