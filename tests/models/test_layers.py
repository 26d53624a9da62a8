"""Layers of classifiers: they cover the weights, as matrices and back."""

import subprocess
import sys

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.layers import (
  layers_of,
  matrix_of,
  tapped,
  weight_names,
  with_matrix,
)
from models.model_shapes import weight_shapes

_SHAPES = small_models.SHAPES


def _numbered(shape):
  """Returns weights whose entries are all different."""
  weights, start = {}, 1
  for name, sizes in weight_shapes(shape).items():
    values = np.arange(start, start + np.prod(sizes), dtype=np.float32)
    weights[name], start = values.reshape(sizes), start + values.size
  return weights


def _layer(shape, name):
  (found,) = [layer for layer in layers_of(shape) if layer.name == name]
  return found


@pytest.mark.parametrize('name', small_models.IMAGES)
def test_every_entry_is_in_one_layer(name):
  shapes = weight_shapes(_SHAPES[name])
  counts = {w: np.zeros(s, np.float32) for w, s in shapes.items()}
  for layer in layers_of(_SHAPES[name]):
    ones = matrix_of(layer, counts) + 1
    assert ones.shape == (layer.num_rows, layer.fan_out)
    counts = with_matrix(layer, counts, ones)
  for count in counts.values():
    np.testing.assert_array_equal(count, 1)


@pytest.mark.parametrize('name', small_models.IMAGES)
def test_names_are_unique_and_in_the_order_of_the_weights(name):
  layers = layers_of(_SHAPES[name])
  assert weight_names(layers) == tuple(weight_shapes(_SHAPES[name]))
  assert len({layer.name for layer in layers}) == len(layers)


def test_windows():
  strides = {
    layer.name: (layer.window.stride, layer.window.padding)
    for layer in layers_of(_SHAPES['resnet18'])
    if layer.window is not None
  }
  assert strides['stem'] == (1, 'SAME')
  assert {name for name, (stride, _) in strides.items() if stride == 2} == {
    f'stage_{stage}/block_1/{part}'
    for stage in (2, 3, 4)
    for part in ('conv_1', 'shortcut')
  }
  assert _layer(_SHAPES['lenet'], 'conv_2').window == (5, 5, 1, 'VALID')


def test_matrix_of_a_convolution_by_hand():
  shape = ImageModelConfig(
    name='emnist_cnn', num_classes=2, image_shape=(6, 6, 2)
  )
  weights, layer = _numbered(shape), _layer(shape, 'conv_1')
  matrix = matrix_of(layer, weights)
  assert matrix.shape == (3 * 3 * 2 + 1, 32) and layer.fan_in == 18
  # Row (1, 2, 1) of 3 x 3 x 2 is 1 * 6 + 2 * 2 + 1 = 11.
  np.testing.assert_array_equal(matrix[11], weights['conv_1/kernel'][1, 2, 1])
  np.testing.assert_array_equal(matrix[18], weights['conv_1/bias'])


@pytest.mark.parametrize('name', small_models.IMAGES)
@pytest.mark.parametrize('convert', [np.asarray, tf.constant])
def test_with_matrix_is_the_inverse_and_changes_nothing_else(name, convert):
  weights = {n: convert(w) for n, w in _numbered(_SHAPES[name]).items()}
  for layer in layers_of(_SHAPES[name])[-12:]:
    changed = with_matrix(layer, weights, -matrix_of(layer, weights))
    num_changed = 0
    for weight, values in weights.items():
      assert type(changed[weight]) is type(values)
      found, values = np.asarray(changed[weight]), np.asarray(values)
      np.testing.assert_array_equal(np.abs(found), values)
      num_changed += np.sum(found != values)
    assert num_changed == layer.num_rows * layer.fan_out
    np.testing.assert_array_equal(
      matrix_of(layer, changed), -matrix_of(layer, weights)
    )


def test_weights_keep_their_type():
  shape = _SHAPES['lenet']
  weights, layer = _numbered(shape), _layer(shape, 'conv_2')
  matrix = matrix_of(layer, weights).astype(np.float64) / 3
  changed = with_matrix(layer, weights, matrix)
  assert changed['conv_2/kernel'].dtype == np.float32
  np.testing.assert_array_equal(
    matrix_of(layer, changed), matrix.astype(np.float32)
  )


def test_no_tap_is_the_identity():
  values = object()
  assert tapped(None, 'head', None, values) is values
  assert tapped(lambda *seen: seen, 'head', 1, 2) == ('head', 1, 2)


def test_counting_needs_no_tensorflow():
  code = (
    'import sys, models.layers, tff_fedfish.methods.registry\n'
    'assert "tensorflow" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
