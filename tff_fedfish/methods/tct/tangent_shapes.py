"""Entries of the tangent kernel's features, counted without TensorFlow.

See `tangent_features.py`.
"""

import math

import numpy as np

from models.image_model_config import ImageModelConfig
from models.layers import Layer, layers_of
from models.model_shapes import num_parameters, weight_shapes


def head_of(shape: ImageModelConfig) -> Layer:
  """Returns the layer that makes the logits."""
  *_, last = layers_of(shape)
  return last


def num_candidates(shape: ImageModelConfig) -> int:
  """Returns the entries that can be features: body and first head column."""
  head = head_of(shape)
  return num_parameters(shape) - (head.fan_out - 1) * head.num_rows


def candidates(shape: ImageModelConfig) -> np.ndarray:
  """Returns these entries of all weights concatenated, int64, ascending."""
  head, num_before, found = head_of(shape), 0, []
  for name, sizes in weight_shapes(shape).items():
    size = math.prod(sizes)
    step = head.fan_out if name in (head.kernel, head.bias) else 1
    found.append(num_before + np.arange(0, size, step))
    num_before += size
  return np.concatenate(found)


def classifier_shapes(
  num_features: int, num_classes: int
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of both weights of a classifier of features."""
  return {
    'tct/kernel': (num_features, num_classes),
    'tct/bias': (num_classes,),
  }
