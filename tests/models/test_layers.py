"""Layers of classifiers: they cover the weights, as matrices and back."""

import numpy as np
import pytest
import small_models
import tensorflow as tf

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
