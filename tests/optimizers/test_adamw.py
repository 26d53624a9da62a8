"""AdamW by hand: Adam's step, and decay beside it."""

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.optimizers.adamw import build_adamw
from tff_fedfish.runtime.in_process_context import set_in_process_context

_ZERO = (np.zeros([2, 2]), np.zeros([2]))


def _step(optimizer, weights, gradients, rate=None, num_steps=1):
  weights = tuple(tf.constant(w, tf.float32) for w in weights)
  gradients = tuple(tf.constant(g, tf.float32) for g in gradients)
  state = optimizer.initialize(
    tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
  )
  if rate is not None:
    hparams = optimizer.get_hparams(state) | {'learning_rate': rate}
    state = optimizer.set_hparams(state, hparams)
  for _ in range(num_steps):
    state, weights = optimizer.next(state, weights, gradients)
  return [w.numpy() for w in weights]


def test_a_step_by_hand():
  # Rate 0.1, beta_1 0.9, beta_2 0.99, epsilon 0.1, decay 0.5; w = 2, g = 3:
  #   m = 0.3, v = 0.09, sqrt(1 - 0.99) / (1 - 0.9) = 1
  #   0.1 * 0.3 / (0.3 + 0.1) = 0.075; decay 0.1 * 0.5 * 2 = 0.1
  optimizer = build_adamw(
    0.1, beta_1=0.9, beta_2=0.99, epsilon=0.1, weight_decay=0.5
  )
  (found,) = _step(optimizer, [[[2.0]]], [[[3.0]]])
  assert found.item() == pytest.approx(2 - 0.075 - 0.1, rel=1e-6)


def test_a_client_step_by_hand():
  # theta 2, x 1, y -1: the gradient 3 of the step above.
  set_in_process_context()
  process = build_fed_avg(
    linear_models.scalar_model(2.0),
    client_optimizer=build_adamw(
      0.1,
      beta_1=0.9,
      beta_2=0.99,
      epsilon=0.1,
      weight_decay=0.5,
      is_decayed=[True],
    ),
    server_optimizer=linear_models.sgd(1.0),
  )
  data = [linear_models.batches([1.0], [-1.0], 1)]
  state = process.next(process.initialize(), data).state
  (theta,) = process.get_model_weights(state).trainable
  assert float(theta) == pytest.approx(2 - 0.075 - 0.1, rel=1e-6)
  # The moments start anew: theta 1.825, gradient 2.825, step
  # 0.1 * 0.2825 / (0.2825 + 0.1), decay 0.1 * 0.5 * 1.825.
  state = process.next(state, data).state
  (theta,) = process.get_model_weights(state).trainable
  expected = 1.825 - 0.02825 / 0.3825 - 0.09125
  assert float(theta) == pytest.approx(expected, rel=1e-6)


def test_decay_is_rate_times_decay_times_weights():
  # Without a gradient Adam does not move; vectors do not decay.
  weights = ([[1.0, -2.0], [3.0, 4.0]], [5.0, -6.0])
  optimizer = build_adamw(0.1, weight_decay=0.2)
  kernel, bias = _step(optimizer, weights, _ZERO)
  np.testing.assert_allclose(kernel, np.multiply(weights[0], 1 - 0.02), 1e-6)
  np.testing.assert_array_equal(bias, weights[1])
  # At the rate that is set, here 0.5: by 0.1.
  kernel, _ = _step(optimizer, weights, _ZERO, rate=0.5)
  np.testing.assert_allclose(kernel, np.multiply(weights[0], 0.9), 1e-6)
  # Unlike L2 regularization, it is not normalized by the second moment.
  kernel, _ = _step(optimizer, weights, _ZERO, num_steps=3)
  np.testing.assert_allclose(kernel, np.multiply(weights[0], 0.98**3), 1e-6)


def test_flags_say_what_decays():
  optimizer = build_adamw(0.1, weight_decay=0.2, is_decayed=[False, True])
  kernel, bias = _step(optimizer, (np.ones([2, 2]), np.ones([2])), _ZERO)
  np.testing.assert_array_equal(kernel, np.ones([2, 2]))
  np.testing.assert_allclose(bias, [0.98, 0.98], 1e-6)
  with pytest.raises(ValueError, match='zip'):
    _step(optimizer, (np.ones([2]),), (np.ones([2]),))


def test_without_decay_is_adam_bit_for_bit():
  random = np.random.RandomState(3)
  weights, gradients = random.randn(2, 1, 5, 4)
  found, adam = (
    _step(optimizer, weights, gradients, num_steps=4)
    for optimizer in (
      build_adamw(0.1),
      tff.learning.optimizers.build_adam(0.1),
    )
  )
  np.testing.assert_array_equal(found, adam)


def test_decaying_all_is_tffs_adamw():
  random = np.random.RandomState(4)
  weights, gradients = random.randn(2, 1, 5)
  ours = build_adamw(0.1, weight_decay=0.3, is_decayed=[True])
  theirs = tff.learning.optimizers.build_adamw(0.1, weight_decay=0.3)
  found, expected = (
    _step(optimizer, weights, gradients, num_steps=4)
    for optimizer in (ours, theirs)
  )
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_epsilon_acts_as_its_setting_says():
  # |g| = epsilon = 1e-7 in the first step: epsilon acts as 31.6 times itself,
  # 1 / sqrt(1 - 0.999), so that the step is rate / (1 + 31.6).
  (found,) = _step(build_adamw(1.0, epsilon=1e-7), [[0.0]], [[1e-7]])
  assert found.item() == pytest.approx(-1 / (1 + 1 / np.sqrt(0.001)), rel=1e-3)


def test_refuses_a_negative_decay():
  with pytest.raises(
    ValueError, match='`weight_decay` must be at least 0, found -0.1'
  ):
    build_adamw(0.1, weight_decay=-0.1)
