"""The classifier of a model's features."""

import numpy as np
import pytest
import small_models
import tensorflow as tf

from tff_fedfish.methods.tct import linearized

_SHAPE = small_models.SHAPES['linear']
# 5 x 4 pixels of 2 channels, in 3 classes.
_NUM_FEATURES = 40
_BATCH = small_models.rows(_SHAPE, 5)


def _features(theta, x):
  """Returns every pixel times its weight of the first class."""
  pixels = tf.reshape(x['image'], [-1, _NUM_FEATURES])
  return tf.cast(pixels, tf.float32) / 255 * theta[0][:, 0]


@pytest.fixture(scope='module')
def spec():
  return linearized.build_feature_classifier(
    small_models.build(_SHAPE), _features, _NUM_FEATURES
  )


def test_scores_and_metrics_by_hand(spec):
  theta, _ = small_models.random_weights(small_models.build(_SHAPE))
  z, random = _features(theta, _BATCH['x']).numpy(), np.random.RandomState(3)
  mean, std = z.mean(axis=0), 0.5 + np.abs(z).max(axis=0)
  kernel = random.normal(size=[_NUM_FEATURES, 3]).astype(np.float32)
  bias = np.float32([1.0, -2.0, 0.5])
  weights, model = ((kernel, bias), (*theta, mean, std)), spec.functional_model
  scores = model.predict_on_batch(weights, _BATCH['x'], True)
  expected = (z - mean) / std @ kernel + bias
  np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
  rows = np.arange(5), _BATCH['y']
  losses = np.log(np.exp(expected).sum(axis=1)) - expected[rows]
  loss = model.loss(scores, _BATCH['y'])
  np.testing.assert_allclose(loss, losses.mean(), rtol=1e-4)


def test_initial_weights(spec):
  (kernel, bias), (*_, mean, std) = spec.draw_initial_weights()
  np.testing.assert_array_equal(kernel, np.zeros([_NUM_FEATURES, 3]))
  np.testing.assert_array_equal(bias, np.zeros(3))
  np.testing.assert_array_equal(mean, np.zeros(_NUM_FEATURES))
  np.testing.assert_array_equal(std, np.ones(_NUM_FEATURES))
