"""What a SavedModel of a classifier of images holds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from models.image_classifier import IMAGE_CLASSIFIERS
from models.image_model_config import ImageModelConfig


class ImageModel(tf.Module):
  """Weights and the function that a SavedModel offers."""

  def __init__(
    self, config: ImageModelConfig, weights: Mapping[str, np.ndarray]
  ):
    """Copies the weights into variables.

    Args:
      config: The model's shape.
      weights: By the names and in the order of `config.weight_shapes()`.
    """
    super().__init__(name='image_model')
    classifier = IMAGE_CLASSIFIERS[config.name]
    self.model_weights = [
      tf.Variable(value, trainable=False, name=name)
      for name, value in weights.items()
    ]

    # The shape of images is the model's, so the signature is an instance's.
    @tf.function(
      input_signature=[
        tf.TensorSpec([None, *config.image_shape], tf.uint8, name='images')
      ]
    )
    def class_logits(images: tf.Tensor) -> dict[str, tf.Tensor]:
      """Returns the score of every class.

      Args:
        images: Uint8 [batch, height, width, channels], as training reads them.

      Returns:
        'logits': float32 [batch, num_classes].
      """
      weights = [tf.convert_to_tensor(w) for w in self.model_weights]
      return {
        'logits': classifier.logits(weights, classifier.normalize(images))
      }

    self.class_logits = class_logits

  def signatures(self) -> dict[str, Any]:
    """Returns the function by the names that it is served under."""
    return {
      'serving_default': self.class_logits,
      'class_logits': self.class_logits,
    }
