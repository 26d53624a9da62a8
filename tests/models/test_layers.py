"""Layers of classifiers: they cover the weights, as matrices and back."""

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.layers import layers_of, matrix_of, weight_names, with_matrix
from models.model_shapes import weight_shapes

_SHAPES = small_models.SHAPES


def _numbered(shape):
  """Returns weights whose entries are all different."""
  weights, start = {}, 1
  for name, sizes in weight_shapes(shape).items():
    values = np.arange(start, start + np.prod(sizes), dtype=np.float32)
    weights[name], start = values.reshape(sizes), start + values.size
  return weights


@pytest.mark.parametrize('name', small_models.IMAGES)
@pytest.mark.parametrize('convert', [np.asarray, tf.constant])
def test_every_entry_is_in_one_layer(name, convert):
  weights = {n: convert(w) for n, w in _numbered(_SHAPES[name]).items()}
  layers, changed = layers_of(_SHAPES[name]), weights
  assert weight_names(layers) == tuple(weights)
  for layer in layers:
    matrix = matrix_of(layer, changed)
    assert matrix.shape == (layer.num_rows, layer.fan_out)
    changed = with_matrix(layer, changed, -matrix)
  for weight, values in weights.items():
    assert type(changed[weight]) is type(values)
    np.testing.assert_array_equal(changed[weight], -np.asarray(values))


def test_matrix_of_a_convolution_by_hand():
  shape = ImageModelConfig(
    name='emnist_cnn', num_classes=2, image_shape=(6, 6, 2)
  )
  weights, layer = _numbered(shape), layers_of(shape)[0]
  matrix = matrix_of(layer, weights)
  assert matrix.shape == (3 * 3 * 2 + 1, 32) and layer.fan_in == 18
  # Row (1, 2, 1) of 3 x 3 x 2 is 1 * 6 + 2 * 2 + 1 = 11.
  np.testing.assert_array_equal(matrix[11], weights['conv_1/kernel'][1, 2, 1])
  np.testing.assert_array_equal(matrix[18], weights['conv_1/bias'])
