"""The classifier of a model's features."""

import numpy as np
import pytest
import small_models
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import build_fed_avg
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


@pytest.mark.slow
def test_a_round_of_tff_trains_the_classifier_only(spec):
  process = build_fed_avg(
    spec,
    client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )
  state = process.initialize()
  before = process.get_model_weights(state)
  (kernel, bias), (*theta, mean, std) = before.trainable, before.non_trainable
  assert kernel.shape == (_NUM_FEATURES, 3) and bias.shape == (3,)
  assert not np.any(kernel) and not np.any(bias)
  np.testing.assert_array_equal(mean, np.zeros(_NUM_FEATURES))
  np.testing.assert_array_equal(std, np.ones(_NUM_FEATURES))
  dataset = tf.data.Dataset.from_tensor_slices(_BATCH).batch(8)
  after = process.get_model_weights(process.next(state, [dataset]).state)
  # d cross-entropy / d V = z^T (softmax - onehot) / rows, at scores of 0.
  z = _features(theta, _BATCH['x']).numpy()
  errors = (1 / 3 - np.eye(3)[_BATCH['y']]) / 5
  for found, gradient in zip(
    after.trainable, (z.T @ errors, errors.sum(axis=0)), strict=True
  ):
    np.testing.assert_allclose(found, -0.1 * gradient, rtol=1e-4, atol=1e-6)
  for found, old in zip(after.non_trainable, before.non_trainable, strict=True):
    np.testing.assert_array_equal(found, old)
