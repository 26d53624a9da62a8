"""Features of the tangent kernel beside gradients of single rows."""

import math

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.methods.tct.features import (
  build_features,
  feature_mask,
  with_drawn_head,
)
from tff_fedfish.methods.tct.settings import num_candidates

_LENET = ImageModelConfig(name='lenet', num_classes=10, image_shape=(28, 28, 1))


def _by_rows(shape, weights, images):
  """Returns the whole gradient of the first logit, a row at a time."""
  classifier = IMAGE_CLASSIFIERS[shape.name]
  found = []
  for image in images:
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits = classifier.logits(weights, classifier.normalize(image[None]))
      first = logits[0, 0]
    gradients = tape.gradient(first, weights)
    found.append(np.concatenate([np.ravel(g) for g in gradients]))
  return np.stack(found)


@pytest.mark.parametrize('name', small_models.IMAGES)
@pytest.mark.parametrize('num_features', [30, 10**9])
def test_gradients_of_single_rows(two_blocks, name, num_features):
  shape = small_models.SHAPES[name]
  model, batch = small_models.build(shape), small_models.rows(shape, 4)
  (weights, _) = small_models.random_weights(model)
  mask = feature_mask(shape, num_features=num_features, model_seed=5)
  found = build_features(model, mask)(weights, batch['x'])
  expected = _by_rows(shape, weights, batch['x']['image'])
  assert found.dtype == tf.float32
  np.testing.assert_allclose(
    found, expected[:, mask], rtol=1e-4, atol=1e-5 * np.abs(expected).max()
  )
  if num_features > 30:
    assert len(mask) == num_candidates(shape)
    # All that is left out is 0.
    others = np.setdiff1d(np.arange(num_parameters(shape)), mask)
    assert len(others) and not expected[:, others].any()
    assert np.abs(expected[:, mask]).max() > 1e-2


def test_mask_is_drawn_among_the_body_and_the_first_head_column():
  # LeNet has 44,190 weights; 84 x 9 of them are of other head columns.
  assert num_candidates(_LENET) == 44_190 - 84 * 9
  everything = feature_mask(_LENET, num_features=100_000, model_seed=1)
  mask = feature_mask(_LENET, num_features=9_000, model_seed=1)
  assert mask.dtype == np.int64
  assert len(mask) == 9_000
  assert np.all(np.diff(mask) > 0)
  assert np.isin(mask, everything).all()
  again = feature_mask(_LENET, num_features=9_000, model_seed=1)
  np.testing.assert_array_equal(again, mask)
  assert np.any(feature_mask(_LENET, num_features=9_000, model_seed=2) != mask)
  start = 44_190 - 840
  of_head = mask[mask >= start]
  assert len(of_head) and np.all((of_head - start) % 10 == 0)
  # 9,000 of 43,434 of every kernel, within four standard deviations.
  begin, share = 0, 9_000 / 43_434
  for name, sizes in [*weight_shapes(_LENET).items()][:-1]:
    count = math.prod(sizes)
    deviation = math.sqrt(count * share * (1 - share))
    drawn = np.sum((mask >= begin) & (mask < begin + count))
    assert abs(drawn - count * share) < 4 * deviation, name
    begin += count


def test_head_is_drawn_by_the_seed_and_the_body_kept():
  shape = small_models.SHAPES['emnist_cnn']
  weights, _ = small_models.random_weights(small_models.build(shape))
  drawn = [with_drawn_head(shape, weights, seed) for seed in (3, 3, 4)]
  for one, other, before in zip(drawn[0], drawn[1], weights, strict=True):
    np.testing.assert_array_equal(one, other)
    assert one.shape == before.shape
  for one, before in zip(drawn[0][:-2], weights[:-2], strict=True):
    np.testing.assert_array_equal(one, before)
  *_, kernel, bias = drawn[0]
  assert np.all(kernel != weights[-2])
  assert np.all(kernel != drawn[2][-2])
  # The model's own initial head: within Glorot's limit, the bias 0.
  assert np.abs(kernel).max() <= math.sqrt(6 / (128 + 3))
  np.testing.assert_array_equal(bias, np.zeros(3))
