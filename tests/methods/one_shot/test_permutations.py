"""Permuted models compute what the models compute."""

import numpy as np
import pytest
from uploaded_models import logits, random_permutation, random_weights

from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot.permutations import (
  incoming_vectors,
  permutation_groups,
  take_units,
)

# Flattened maps have 4 x 2 pixels (lenet) and 12 x 8 (emnist_cnn).
_IMAGE_SHAPE = (28, 20, 2)
_NUM_CLASSES = 7


def _image_shape_of(name):
  return ImageModelConfig(
    name=name, num_classes=_NUM_CLASSES, image_shape=_IMAGE_SHAPE
  )


def _transformer(position_embedding='learned'):
  return TransformerConfig(
    num_layers=2,
    width=12,
    num_heads=3,
    vocabulary_size=11,
    sequence_length=5,
    position_embedding=position_embedding,
  )


_SHAPES = {
  **{name: _image_shape_of(name) for name in IMAGE_MODELS},
  'transformer': _transformer(),
  'rotary transformer': _transformer('rotary'),
}


@pytest.mark.parametrize('name', _SHAPES)
def test_permuted_groups_leave_the_logits(name, two_blocks):
  shape = _SHAPES[name]
  random = np.random.default_rng(2)
  weights = random_weights(shape, 0)
  expected = logits(shape, weights)
  permuted = weights
  for group in permutation_groups(shape):
    permutation = random_permutation(group, random)
    assert np.any(permutation != np.arange(group.num_units))
    permuted = take_units(permuted, group, permutation)
    for axis in group.axes:
      assert np.any(permuted[axis.name] != weights[axis.name])
    found = logits(shape, permuted)
    np.testing.assert_allclose(found, expected, atol=1e-5)
  assert list(permuted) == list(weights)
  for name, weight in permuted.items():
    assert (weight.shape, weight.dtype) == (weights[name].shape, np.float32)


@pytest.mark.parametrize(
  ('name', 'sizes'),
  [
    ('linear', []),
    # Two input channels: 3 * 3 * 2 + 1 and 3 * 3 * 32 + 1; 12 * 8 * 64 + 1.
    ('emnist_cnn', [(32, 19), (64, 289), (128, 6145)]),
    # Without biases; 4 * 2 * 16.
    ('lenet', [(6, 50), (16, 150), (120, 128), (84, 120)]),
    # q, k and v of 4 columns, a head's width, from 12 + 1; 12 + 1.
    ('transformer', 2 * [(3, 3 * 4 * 13), (48, 13)]),
  ],
)
def test_groups_in_order_with_all_inputs_and_biases(name, sizes):
  shape = _SHAPES[name]
  weights = random_weights(shape, 0)
  found = [incoming_vectors(weights, g) for g in permutation_groups(shape)]
  assert [vectors.shape for vectors in found] == sizes


def test_added_zero_units_leave_the_logits():
  shape = _SHAPES['emnist_cnn']
  weights = random_weights(shape, 0)
  expected = logits(shape, weights)
  wider = weights
  for group in permutation_groups(shape):
    sources = np.concatenate([[-1, -1], np.arange(group.num_units), [-1]])
    wider = take_units(wider, group, sources)
  # 28 - 4 = 24, pooled 12; 20 - 4 = 16, pooled 8: 12 * 8 * (64 + 3) rows.
  assert wider['conv_2/kernel'].shape == (3, 3, 35, 67)
  assert wider['hidden/kernel'].shape == (6432, 131)
  assert wider['head/kernel'].shape == (131, _NUM_CLASSES)
  np.testing.assert_allclose(logits(shape, wider), expected, atol=1e-5)
