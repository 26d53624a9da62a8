"""One client's training and Fisher sums, followed by hand."""

import linear_models
import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.fed_fish import process
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.gradients import batch_gradients

# theta x, loss mean of (theta x - y)^2 / 2, data (1,2), (2,2), (3,3) in batches
# {1, 2}, {3}; theta = 0, learning rate 0.1, E = 2:
#   gradients -3, -6.3, -0.675, -0.0225; theta 0.3, 0.93, 0.9975, 0.99975
_X, _Y = [1.0, 2.0, 3.0], [2.0, 2.0, 3.0]


def _train(num_local_epochs=2, observer=None, x=_X, y=_Y, theta=0.0):
  model = linear_models.scalar_model()
  optimizer = linear_models.sgd(0.1)
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )

  @tf.function
  def run(dataset):
    return local_training.train(
      model,
      optimizer,
      hparams,
      (tf.constant(theta),),
      (),
      dataset,
      num_local_epochs=num_local_epochs,
      observer=observer,
    )

  return run(linear_models.batches(x, y, 2))


def _sums(theta, x=_X, y=_Y, batch_size=2):
  model = linear_models.scalar_model()

  @tf.function
  def run(dataset):
    return process.squared_gradients(
      model, ((tf.constant(theta),), ()), dataset
    )

  return run(linear_models.batches(x, y, batch_size))


def _last_epoch_observer():
  return local_training.GradientObserver(
    process.no_squares((tf.constant(0.0),)),
    lambda sums, gradients, _: process.add_squares(sums, gradients),
  )


class TestTrain:
  def test_two_epochs_by_hand(self):
    result = _train()
    np.testing.assert_allclose(result.trainable[0], 0.99975, rtol=1e-6)
    assert result.num_examples == 3  # Of one pass, not of two.
    assert result.observation is None

  def test_last_epoch_observes_the_last_epoch_alone(self):
    result = _train(observer=_last_epoch_observer())
    # 0.675^2 + 0.0225^2 = 0.455625 + 0.00050625
    np.testing.assert_allclose(
      result.observation.sums[0], 0.45613125, rtol=1e-5
    )
    assert result.observation.num_batches == 2
    np.testing.assert_allclose(result.trainable[0], 0.99975, rtol=1e-6)
    assert result.num_examples == 3

  def test_last_epoch_with_one_epoch_is_every_gradient(self):
    result = _train(num_local_epochs=1, observer=_last_epoch_observer())
    # 3^2 + 6.3^2 = 48.69
    np.testing.assert_allclose(result.observation.sums[0], 48.69, rtol=1e-6)

  @pytest.mark.parametrize('observer', [None, _last_epoch_observer()])
  def test_no_data_leaves_the_weights(self, observer):
    result = _train(x=[], y=[], theta=4.0, observer=observer)
    assert result.trainable[0] == 4.0
    assert result.num_examples == 0


class TestFisherSums:
  def test_extra_pass_by_hand(self):
    # At 0.99975: ((-1.00025) + (-0.001)) / 2 = -0.500625 and -0.00225;
    # 0.500625^2 + 0.00225^2 = 0.250630453125
    sums = _sums(0.99975)
    np.testing.assert_allclose(sums.sums[0], 0.250630453125, rtol=1e-6)
    assert sums.num_batches == 2

  def test_per_example_by_hand(self):
    # 1.00025^2 + 0.001^2 + 0.00225^2 = 1.000506125 (theta 0.99975)
    sums = _sums(0.99975, batch_size=1)
    np.testing.assert_allclose(sums.sums[0], 1.000506125, rtol=1e-6)

  @pytest.mark.parametrize(
    ('batch_size', 'expected'),
    # Per-example gradients (1, -1, 2, 0):
    [
      (2, 1.0),  # 0^2 + 1^2
      (3, 4 / 9),  # (2/3)^2 + 0^2: the ragged batch weighs more.
      (4, 0.25),  # (2/4)^2
      (1, 6.0),  # 1 + 1 + 4 + 0
    ],
  )
  def test_depends_on_the_batches(self, batch_size, expected):
    # With theta = 0 and x = 1 the gradient of an example is -y.
    sums = _sums(0.0, [1.0] * 4, [-1.0, 1.0, -2.0, 0.0], batch_size)
    np.testing.assert_allclose(sums.sums[0], expected, rtol=1e-6)


class TestGradients:
  def test_sparse_gradients_are_summed_before_squaring(self):
    model = linear_models.table_model(4)
    (batch,) = linear_models.batches([1, 1, 3], [2.0, 4.0, 3.0], 3)
    (gradient,) = batch_gradients(
      model, (tf.zeros([4]),), (), batch, training=False
    ).data
    # Mean over 3: bin 1 (-2 - 4) / 3 = -2, bin 3 -1; others untouched.
    np.testing.assert_allclose(gradient, [0, -2, 0, -1], rtol=1e-6)
    sums = process.add_squares(
      process.no_squares((tf.zeros([4]),)), (gradient,)
    )
    # Squaring entry by entry first would give (4 + 16) / 9 in bin 1.
    np.testing.assert_allclose(sums.sums[0], [0, 4, 0, 1], rtol=1e-6)

  def test_weight_that_does_not_reach_the_loss_has_gradient_zero(self):
    model = linear_models.scalar_model()
    (batch,) = linear_models.batches([1.0], [1.0], 1)
    gradients = batch_gradients(
      model, (tf.constant(0.0), tf.ones([2])), (), batch, training=True
    ).data
    np.testing.assert_array_equal(gradients[1], [0, 0])


class TestEvaluate:
  def test_counts_every_row_once_and_does_not_train(self):
    from models.functional_model import build_language_model
    from models.transformer_config import TransformerConfig

    config = TransformerConfig(
      num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=5
    )
    spec = build_language_model(config, model_seed=3)
    weights = spec.draw_initial_weights()
    tokens = np.arange(18, dtype=np.int32).reshape(3, 6) % 11
    dataset = tf.data.Dataset.from_tensor_slices(
      dict(x=tokens, y=np.array([5, 2, 0], np.int32))
    ).batch(2)

    @tf.function
    def run():
      return spec.functional_model.finalize_metrics(
        local_training.evaluate(spec.functional_model, *weights, dataset)
      )

    metrics = run()
    assert metrics['num_tokens'] == 7
    assert metrics['num_sequences'] == 3
    # Small random weights predict nearly uniformly: ln 11 = 2.398.
    np.testing.assert_allclose(metrics['loss'], np.log(11), atol=0.1)
