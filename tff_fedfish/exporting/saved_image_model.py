"""SavedModel of a classifier of images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from models.image_classifier import IMAGE_CLASSIFIERS
from models.image_model_config import ImageModelConfig
from tff_fedfish.exporting.weights_module import WeightsModule


class ImageModel(WeightsModule):
  """Weights and the function that a SavedModel offers."""

  def __init__(
    self, config: ImageModelConfig, weights: Mapping[str, np.ndarray]
  ):
    """Copies the weights into variables.

    Args:
      config: The model's shape.
      weights: By the names and in the order of `config.weight_shapes()`.
    """
    super().__init__('image_model', weights)
    classifier = IMAGE_CLASSIFIERS[config.name]

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
      inputs = classifier.normalize(images)
      return {'logits': classifier.logits(self.weight_tensors(), inputs)}

    self.class_logits = class_logits

  def signatures(self) -> dict[str, Any]:
    """Returns the function by the names that it is served under."""
    return {
      'serving_default': self.class_logits,
      'class_logits': self.class_logits,
    }
