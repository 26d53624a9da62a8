"""The order of what happens inside a local step, followed by hand."""

import collections

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.methods.fed_fish import process
from tff_fedfish.rounds import local_training


class _ClippedWithDecay(tff.learning.optimizers.Optimizer):
  """w - rate (g clipped to a norm) - rate decay w."""

  def __init__(self, rate, max_norm, decay):
    self._constants = rate, max_norm, decay

  def initialize(self, specs):
    return collections.OrderedDict()

  def next(self, state, weights, gradients):
    rate, max_norm, decay = self._constants
    clipped, _ = tf.clip_by_global_norm(gradients, max_norm)
    return state, tf.nest.map_structure(
      lambda w, g: w - rate * g - rate * decay * w, weights, tuple(clipped)
    )


def _squares(weights):
  return local_training.GradientObserver(
    process.no_squares(weights),
    lambda sums, gradients, _: process.add_squares(sums, gradients),
  )


def _train(dataset, *, theta, optimizer=None, model=None, **options):
  optimizer = optimizer or linear_models.sgd(0.1)
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )

  @tf.function
  def run(dataset):
    return local_training.train(
      model or linear_models.scalar_model(),
      optimizer,
      hparams,
      (tf.constant(theta),),
      (),
      dataset,
      **(dict(num_local_epochs=1) | options),
    )

  return run(dataset)


def test_extra_loss_is_trained_on_and_not_reported():
  # Data loss (theta - 3)^2 / 2 at theta 1: 2, gradient -2. Extra loss
  # 4 theta + data loss: gradient 4 - 2. theta = 1 - 0.1 (-2 + 2) = 1.
  seen = []

  def extra_loss(weights, batch, output):
    seen.append(batch['y'].shape)
    return 4 * weights[0] + output.loss

  result = _train(
    linear_models.batches([1.0], [3.0], 1),
    theta=1.0,
    extra_loss=extra_loss,
    observer=_squares((tf.constant(0.0),)),
  )
  assert result.trainable[0] == 1.0
  assert result.observation.sums[0] == 4.0
  assert result.mean_loss == 2.0
  assert seen


def test_order_of_a_step():
  # theta = 1, loss (theta - 3)^2 / 2 + 5 theta: -2 for the observer, 3 for
  # `correct_gradient`, which makes it 10 * 3 + theta = 31; clipped to 0.5;
  # theta = 1 - 0.1 * 0.5 - 0.1 * 2 * 1 = 0.75.
  found = _train(
    linear_models.batches([1.0], [3.0], 1),
    theta=1.0,
    optimizer=_ClippedWithDecay(0.1, 0.5, 2.0),
    extra_loss=lambda weights, batch, output: 5 * weights[0],
    correct_gradient=lambda gradients, weights: tf.nest.map_structure(
      lambda g, w: 10 * g + w, gradients, weights
    ),
    observer=_squares((tf.constant(0.0),)),
  )
  np.testing.assert_allclose(found.trainable[0], 0.75, rtol=1e-6)
  assert found.observation.sums[0] == 4.0


@pytest.mark.parametrize('estimator', ['last_epoch', 'extra_pass'])
@pytest.mark.parametrize(
  ('max_norm', 'decay'), [(1e-3, 0.5), (1e-3, 0.0), (1e3, 0.5)]
)
def test_fisher_knows_neither_clipping_nor_decay(estimator, max_norm, decay):
  x, y, theta = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 3.0]), 0.5
  dataset = linear_models.batches(x, y, 2)
  result = _train(
    dataset,
    theta=theta,
    optimizer=_ClippedWithDecay(0.1, max_norm, decay),
    num_local_epochs=2,
    observer=_squares((tf.constant(0.0),)),
  )

  def gradient(rows):
    return np.mean(x[rows] * (theta * x[rows] - y[rows]))

  batches = [slice(0, 2), slice(2, 3)]
  squares = []
  for rows in batches * 2:
    g = gradient(rows)
    # Whole, at the weights that clipping and decay have led to.
    squares.append(g**2)
    theta -= 0.1 * g * min(1, max_norm / abs(g)) + 0.1 * decay * theta
  np.testing.assert_allclose(result.trainable[0], theta, rtol=1e-6)
  if estimator == 'last_epoch':
    found, expected = result.observation, sum(squares[2:])
  else:
    expected = sum(gradient(rows) ** 2 for rows in batches)

    @tf.function
    def sums(weights):
      return process.squared_gradients(
        linear_models.scalar_model(), (weights, ()), dataset
      )

    found = sums(result.trainable)
  np.testing.assert_allclose(found.sums[0], expected, rtol=1e-5)


class _CountingModel:
  """Counts the backward passes that are traced."""

  def __init__(self):
    self.num_passes = 0

  def predict_on_batch(self, weights, x, training):
    @tf.custom_gradient
    def identity(value):
      def backward(upstream):
        self.num_passes += 1
        return upstream

      return tf.identity(value), backward

    return identity(weights[0][0]) * x

  def loss(self, output, label):
    return tf.reduce_mean(output - label)

  def initialize_metrics_state(self):
    return ()

  def update_metrics_state(self, state, labels, batch_output):
    return state


@pytest.mark.parametrize(
  ('has_extra_loss', 'observes', 'num_passes'),
  [
    (False, False, 1),
    (True, False, 1),
    # One of the first epoch, one of the observed one.
    (False, True, 2),
    # The observed steps alone take two.
    (True, True, 3),
  ],
)
def test_number_of_backward_passes(has_extra_loss, observes, num_passes):
  model = _CountingModel()
  _train(
    linear_models.batches([1.0], [1.0], 1),
    theta=1.0,
    model=model,
    num_local_epochs=2,
    extra_loss=(lambda w, batch, output: w[0]) if has_extra_loss else None,
    observer=_squares((tf.constant(0.0),)) if observes else None,
  )
  assert model.num_passes == num_passes
