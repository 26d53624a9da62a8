"""OTFusion: permuted copies, averages by hand, exact assignments."""

import numpy as np
import pytest
from uploaded_models import (
  ListedUploads,
  logits,
  permuted_copy,
  random_weights,
  solve,
)

from models.image_model_config import ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot.ot_fusion import OtFusion


def _image_shape(name):
  return ImageModelConfig(name=name, num_classes=7, image_shape=(28, 20, 2))


_SHAPES = {
  **{name: _image_shape(name) for name in ('emnist_cnn', 'lenet', 'resnet18')},
  'transformer': TransformerConfig(
    num_layers=2, width=12, num_heads=3, vocabulary_size=11, sequence_length=5
  ),
}


def _fuse(shape, models, client_weights):
  uploads = ListedUploads(
    shape, 'none', client_weights, [model.values() for model in models]
  )
  result = solve(uploads, shape, OtFusion)
  # `mean` reads parts.
  assert uploads.num_read == len(models)
  return uploads.by_name(result.weights), uploads.by_name(uploads.mean())


@pytest.mark.parametrize('name', _SHAPES)
def test_permuted_copies_fuse_to_client_0(name, two_blocks):
  shape = _SHAPES[name]
  weights = random_weights(shape, 0)
  copies = [permuted_copy(shape, weights, seed) for seed in (1, 2)]
  fused, average = _fuse(shape, [weights, *copies], [3, 5, 4])
  for key, weight in weights.items():
    assert (fused[key].dtype, fused[key].shape) == (np.float32, weight.shape)
    assert fused[key].flags.c_contiguous
    np.testing.assert_allclose(fused[key], weight, atol=1e-5)
  # The average is another function.
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
  fused, _ = _fuse(shape, [weights, permuted_copy(shape, moved, 2)], [3, 5])
  for key, weight in weights.items():
    expected = weight + 5 / 8 * steps[key]
    np.testing.assert_allclose(fused[key], expected, atol=1e-6)


def test_channels_that_are_normalized_together_stay_together(two_blocks):
  # Of different models the closest channels are of different groups.
  shape = _SHAPES['resnet18']
  models = [random_weights(shape, seed) for seed in range(2)]
  fused, average = _fuse(shape, models, [1, 3])
  for key, weight in average.items():
    # A permutation changes no sum; all values but those of blocks stay.
    np.testing.assert_allclose(fused[key].sum(), weight.sum(), atol=1e-2)
    is_permuted = 'conv_1' in key or key.endswith('conv_2/kernel')
    assert is_permuted != np.allclose(fused[key], weight, atol=1e-6)


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
  fused, _ = _fuse(shape, [weights, other], [1, 3])
  # [[2, 0], [0, 2]] / 4 + [[2, 0], [0.5, 3]] * 3 / 4.
  weights['hidden_2/kernel'][:2, :2] = [[2, 0], [0.375, 2.75]]
  for key, weight in weights.items():
    np.testing.assert_allclose(fused[key], weight, atol=1e-6)


@pytest.mark.parametrize(
  'rows',
  [
    # Unit 0 is nearest to row 1, but |0 - 1| + |3 + 3| = 7 is more than
    # |0 + 3| + |3 - 1| = 5.
    [[-3, 0], [1, 0]],
    # Row 1 is 3 from (0, 0): 49 / 36 + 275 / 36 = 9, and 5 from (3, 0): (25 /
    # 6)^2 + 275 / 36 = 25. In order 0 + 5 is less than 3 + 3, though 0 + 25 is
    # more than 9 + 9.
    [[0, 0], [-7 / 6, 275**0.5 / 6]],
  ],
)
def test_the_least_total_distance(rows):
  # Two units at (0, 0) and (3, 0), which stay in order; the others are alike.
  shape = _SHAPES['lenet']
  weights = random_weights(shape, 0)
  kernel = weights['hidden_1/kernel']
  kernel[:, :2] = 0
  kernel[0, 1] = 3
  other = {key: weight.copy() for key, weight in weights.items()}
  other['hidden_1/kernel'][:2, :2] = np.transpose(rows)
  fused, _ = _fuse(shape, [weights, other], [1, 1])
  expected = (kernel + other['hidden_1/kernel']) / 2
  np.testing.assert_allclose(fused['hidden_1/kernel'], expected, atol=1e-6)
