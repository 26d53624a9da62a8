"""A model as a TensorFlow SavedModel, which is used without this project.

A SavedModel holds graphs and weights, no Python.
"""

import contextlib
import logging
import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape
from tff_fedfish.exporting.saved_image_model import ImageModel
from tff_fedfish.exporting.saved_language_model import LanguageModel


def write_saved_model(
  directory: str | os.PathLike,
  shape: ModelShape,
  weights: Mapping[str, np.ndarray],
) -> None:
  """Writes a SavedModel.

  Args:
    directory: Where to; created. Written file by file, not atomically.
    shape: The model's shape, which says whether it is for text or images.
    weights: By the names and in the order of `weight_shapes(shape)`.

  Raises:
    tf.errors.OpError: If it cannot be written, such as on a full disk.
  """
  is_of_images = isinstance(shape, ImageModelConfig)
  model = (ImageModel if is_of_images else LanguageModel)(shape, weights)
  with _without_remarks():
    tf.saved_model.save(
      model,
      os.fspath(directory),
      signatures=model.signatures(),
      # For inference: the backward passes would be graphs of their own.
      options=tf.saved_model.SaveOptions(experimental_custom_gradients=False),
    )


@contextlib.contextmanager
def _without_remarks():
  """Keeps TensorFlow from saying that it wrote assets, of which none exist."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel(logging.WARNING)
  try:
    yield
  finally:
    logger.setLevel(level)
