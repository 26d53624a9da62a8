"""OTFusion: permuted copies, averages by hand, what is refused."""

import numpy as np
import pytest
from uploaded_models import (
  ListedUploads,
  context_of,
  logits,
  permuted_copy,
  random_weights,
  uploads_of,
)

from models import image_model_config
from models.image_model_config import ImageModelConfig
from models.model_shapes import weight_shapes
from models.permutations import permutation_groups, permute
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot import OneShotConfig
from tff_fedfish.methods.one_shot import ot_fusion_solve as ot_fusion


def _image_shape(name):
  return ImageModelConfig(name=name, num_classes=7, image_shape=(28, 20, 2))


_SHAPES = {
  **{name: _image_shape(name) for name in ('emnist_cnn', 'lenet', 'resnet18')},
  'transformer': TransformerConfig(
    num_layers=2,
    width=12,
    num_heads=3,
    vocabulary_size=11,
    sequence_length=5,
  ),
}


def _solve(shape, uploads, **settings):
  context = context_of(shape, OneShotConfig(name='ot_fusion', **settings))
  return ot_fusion.solve(uploads, (), context)


def _fuse(shape, uploads):
  result = _solve(shape, uploads)
  assert (result.best_step, result.residual) == (None, None)
  return dict(zip(weight_shapes(shape), result.weights, strict=True))


def _average(uploads):
  return tuple(
    np.tensordot(uploads.shares, np.stack(weights), 1).astype(np.float32)
    for weights in zip(*(upload.weights for upload in uploads), strict=True)
  )


@pytest.fixture
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: one and two channels in a norm's group."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


@pytest.mark.parametrize('name', _SHAPES)
def test_permuted_copies_fuse_to_client_0(name, two_blocks):
  shape = _SHAPES[name]
  weights = random_weights(shape, 0)
  copies = [permuted_copy(shape, weights, seed) for seed in (1, 2)]
  uploads = uploads_of([weights, *copies], [3, 5, 4])
  fused = _fuse(shape, uploads)
  for key, weight in weights.items():
    assert (fused[key].dtype, fused[key].shape) == (np.float32, weight.shape)
    assert fused[key].flags.c_contiguous
    np.testing.assert_allclose(fused[key], weight, atol=1e-5)
  # The average is another function.
  average = dict(zip(weights, _average(uploads), strict=True))
  difference = logits(shape, average) - logits(shape, weights)
  assert np.max(np.abs(difference)) > 1e-2


def test_near_copies_are_aligned_and_weighed_by_their_shares():
  # w_1 is a permuted copy of w_0 + d: the result is w_0 + p_1 d, p_1 = 5 / 8.
  shape = _SHAPES['lenet']
  weights = random_weights(shape, 0)
  random = np.random.default_rng(1)
  steps = {
    key: 1e-3 * random.normal(size=weight.shape).astype(np.float32)
    for key, weight in weights.items()
  }
  moved = {key: weight + steps[key] for key, weight in weights.items()}
  copy = permuted_copy(shape, moved, 2)
  fused = _fuse(shape, uploads_of([weights, copy], [3, 5]))
  for key, weight in weights.items():
    expected = weight + 5 / 8 * steps[key]
    np.testing.assert_allclose(fused[key], expected, atol=1e-6)


def test_aligned_clients_are_averaged():
  shape = _SHAPES['transformer']
  weights = random_weights(shape, 0)
  other = {key: 0.9 * weight for key, weight in weights.items()}
  # 0.25 + 0.75 * 0.9 = 0.925.
  fused = _fuse(shape, uploads_of([weights, other], [1, 3]))
  for key, weight in weights.items():
    np.testing.assert_allclose(fused[key], 0.925 * weight, atol=1e-6)


def test_channels_that_are_normalized_together_stay_together(two_blocks):
  # Of different models the closest channels are of different groups.
  shape = _SHAPES['resnet18']
  models = [random_weights(shape, seed) for seed in range(2)]
  uploads = uploads_of(models, [1, 3])
  fused = _fuse(shape, uploads)
  for key, average in zip(fused, _average(uploads), strict=True):
    # A permutation changes no sum; all values but those of blocks stay.
    np.testing.assert_allclose(fused[key].sum(), average.sum(), atol=1e-2)
    is_permuted = 'conv_1' in key or key.endswith('conv_2/kernel')
    assert is_permuted != np.allclose(fused[key], average, atol=1e-6)


def test_a_model_without_hidden_units_is_averaged():
  shape = _image_shape('linear')
  models = [random_weights(shape, seed) for seed in range(2)]
  uploads = uploads_of(models, [1, 4])
  fused = _fuse(shape, uploads)
  for found, expected in zip(fused.values(), _average(uploads), strict=True):
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_one_client_keeps_its_model():
  shape = _SHAPES['lenet']
  weights = random_weights(shape, 0)
  fused = _fuse(shape, uploads_of([weights], [2]))
  for key, weight in weights.items():
    np.testing.assert_array_equal(fused[key], weight)


def test_units_are_matched_after_their_inputs_are_in_order():
  # Units 0 and 1 of both hidden layers; the others are alike and do not mix
  # with them.
  shape = _SHAPES['lenet']
  weights = random_weights(shape, 0)
  weights['hidden_2/kernel'][:2] = 0
  weights['hidden_2/kernel'][:, :2] = 0
  other = {key: weight.copy() for key, weight in weights.items()}
  weights['hidden_2/kernel'][:2, :2] = [[2, 0], [0, 2]]
  # Units 0 and 1 of the first layer have changed places.
  other['hidden_1/kernel'][:, [0, 1]] = weights['hidden_1/kernel'][:, [1, 0]]
  # The columns (0.5, 2) and (3, 0) look like (0, 2) and (2, 0) in this order.
  # With their inputs in order they are (2, 0.5) and (0, 3): the same order.
  other['hidden_2/kernel'][:2, :2] = [[0.5, 3], [2, 0]]
  fused = _fuse(shape, uploads_of([weights, other], [1, 3]))
  # [[2, 0], [0, 2]] / 4 + [[2, 0], [0.5, 3]] * 3 / 4.
  weights['hidden_2/kernel'][:2, :2] = [[2, 0], [0.375, 2.75]]
  for key, weight in weights.items():
    np.testing.assert_allclose(fused[key], weight, atol=1e-6)


def test_uploads_are_read_once_and_in_turn():
  shape = _SHAPES['lenet']
  read = []

  class Read(ListedUploads):
    def __iter__(self):
      for index, upload in enumerate(super().__iter__()):
        read.append(index)
        yield upload

  models = [random_weights(shape, seed) for seed in range(3)]
  uploads = Read(uploads_of(models, [1, 2, 3]))
  read.clear()
  _solve(shape, uploads)
  assert read == [0, 1, 2]


def test_refused_uploads():
  shape = _SHAPES['lenet']
  weights = random_weights(shape, 0)
  wider = random_weights(_image_shape('emnist_cnn'), 0)
  wanted = 'weights of client 1.* the shapes that all clients start from'
  with pytest.raises(ValueError, match=wanted):
    _solve(shape, uploads_of([weights, wider], [1, 1]))
  short = dict(list(weights.items())[:-1])
  with pytest.raises(ValueError, match='weights of client 0'):
    _solve(shape, uploads_of([short, weights], [1, 1]))
  bad = dict(weights)
  bad['conv_2/kernel'] = np.full_like(weights['conv_2/kernel'], np.inf)
  with pytest.raises(ValueError, match='conv_2/kernel of client 1. must be f'):
    _solve(shape, uploads_of([weights, bad], [1, 1]))
  with pytest.raises(ValueError, match='`uploads` must be of at least one cli'):
    _solve(shape, uploads_of([], []))


def test_only_matched_units_move():
  # A permutation of one group of client 1, undone without touching the others.
  shape = _SHAPES['transformer']
  weights = random_weights(shape, 0)
  heads = permutation_groups(shape)[2]
  copy = permute(weights, heads, np.array([1, 2, 0]))
  fused = _fuse(shape, uploads_of([weights, copy], [1, 1]))
  for key, weight in weights.items():
    np.testing.assert_array_equal(fused[key], weight)
