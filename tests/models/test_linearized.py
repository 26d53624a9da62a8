"""The classifier of tangent features."""

import numpy as np
import pytest
import small_models
import tensorflow as tf
import tensorflow_federated as tff

from models import image_model_config, linearized
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.tct import features as tangent_features
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.gradients import batch_gradients


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to trace."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


class _Features:
  """A feature classifier of a model with its parts."""

  def __init__(self, name, num_features=40):
    shape = small_models.SHAPES[name]
    self.model = small_models.build(shape)
    mask = tangent_features.feature_mask(
      shape, num_features=num_features, model_seed=1
    )
    self.features = tangent_features.build_features(self.model, shape, mask)
    self.spec = linearized.build_feature_classifier(
      self.model,
      self.features,
      num_features=len(mask),
      num_classes=shape.num_classes,
    )
    self.batch = small_models.rows(shape, 5)
    self.theta, _ = small_models.random_weights(self.model)


@pytest.mark.parametrize('name', small_models.IMAGES)
def test_scores_of_features(name):
  case = _Features(name)
  z = case.features(case.theta, case.batch).numpy()
  random = np.random.RandomState(3)
  mean, std = z.mean(axis=0), 0.5 + np.abs(z).max(axis=0)
  kernel = random.normal(size=[z.shape[1], 3]).astype(np.float32)
  bias = np.float32([1.0, -2.0, 0.5])
  weights = (kernel, bias), (*case.theta, mean, std)
  functional = case.spec.functional_model
  found = functional.predict_on_batch(weights, case.batch['x'], True)
  expected = (z - mean) / std @ kernel + bias
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  dataset = tf.data.Dataset.from_tensor_slices(case.batch).batch(2)
  metrics = tf.function(
    lambda trainable, fixed: functional.finalize_metrics(
      local_training.evaluate(functional, trainable, fixed, dataset)
    )
  )(*weights)
  hits = np.argmax(expected, axis=1) == case.batch['y']
  np.testing.assert_allclose(metrics['accuracy'], hits.mean(), rtol=1e-6)
  assert metrics['num_tokens'] == 5
  losses = (
    np.log(np.exp(expected).sum(axis=1))
    - expected[np.arange(5), case.batch['y']]
  )
  np.testing.assert_allclose(metrics['loss'], losses.mean(), rtol=1e-4)


def test_initial_classifier_scores_0():
  case = _Features('lenet')
  (kernel, bias), (*theta, mean, std) = case.spec.draw_initial_weights()
  assert kernel.shape == [40, 3] and bias.shape == [3]
  assert not np.any(kernel) and not np.any(bias)
  assert len(theta) == 5
  np.testing.assert_array_equal(mean, np.zeros(40))
  np.testing.assert_array_equal(std, np.ones(40))
  specs = case.spec.functional_model.initial_weights
  tf.nest.map_structure(
    lambda spec, value: spec.shape.assert_is_compatible_with(value.shape),
    specs,
    case.spec.draw_initial_weights(),
  )


def test_a_round_of_tff_trains_the_classifier_only():
  case = _Features('lenet')
  process = build_fed_avg(
    case.spec,
    client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )
  state = process.initialize()
  before = process.get_model_weights(state)
  dataset = tf.data.Dataset.from_tensor_slices(case.batch).batch(8)
  state = process.next(state, [dataset]).state
  after = process.get_model_weights(state)
  expected = batch_gradients(
    case.spec.functional_model,
    tuple(map(tf.constant, before.trainable)),
    tuple(map(tf.constant, before.non_trainable)),
    case.batch,
    training=True,
  ).total
  for found, gradient in zip(after.trainable, expected, strict=True):
    np.testing.assert_allclose(found, -0.1 * gradient, rtol=1e-4, atol=1e-6)
  assert np.any(after.trainable[0])
  for found, old in zip(after.non_trainable, before.non_trainable, strict=True):
    np.testing.assert_array_equal(found, old)
