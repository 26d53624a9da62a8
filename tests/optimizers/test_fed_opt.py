"""FedOpt's listing, by the vector of the specification and by hand."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.optimizers.fed_opt import build_fed_opt

_TAU = 1e-3
# From 0, Delta (0.1, -0.2) and then (0.3, 0.1); eta 0.1, tau 1e-3, beta_1 0.9
# (Adagrad 0), beta_2 0.99.
_DELTAS = ((0.1, -0.2), (0.3, 0.1))
_VECTOR = {
  # v: 0.01 and 0.04, then 0.1 and 0.05. 0.1 * 0.1 / (0.1 + 0.001) = 0.0990099.
  'adagrad': (
    (0.0990099010, -0.0995024876),
    (0.1935791765, -0.0549802376),
  ),
  # m = 0.01, v = 1e-4: 0.1 * 0.01 / (0.01 + 0.001) = 0.0909091.
  'adam': ((0.0909090909, -0.0952380952), (0.2105154525, -0.1296155618)),
  # v = 0 - 0.01 * 0.01 * sign(0 - 0.01): as Adam's in the first round.
  'yogi': ((0.0909090909, -0.0952380952), (0.2104574680, -0.1294836740)),
}


def _points(optimizer, gradients, dtype=tf.float64):
  """Returns the weights after each step, from 0."""
  weights = tf.zeros([2], dtype)
  state = optimizer.initialize(tf.TensorSpec([2], dtype))
  # TensorFlow would make a float32 of it.
  rate = tf.constant(state['learning_rate'], dtype)
  state = optimizer.set_hparams(
    state, optimizer.get_hparams(state) | {'learning_rate': rate}
  )
  points = []
  for gradient in gradients:
    state, weights = optimizer.next(
      state, weights, tf.constant(gradient, dtype)
    )
    points.append(weights.numpy())
  return points


@pytest.mark.parametrize('rule', _VECTOR)
def test_vector(rule):
  optimizer = build_fed_opt(
    0.1,
    rule,
    beta_1=0.0 if rule == 'adagrad' else 0.9,
    beta_2=0.99,
    epsilon=_TAU,
  )
  found = _points(optimizer, -np.array(_DELTAS))
  np.testing.assert_allclose(found, _VECTOR[rule], rtol=0, atol=6e-11)


def test_adam_without_correction_is_not_tffs():
  # With correction the first step has the length of the rate in every entry.
  corrected = tff.learning.optimizers.build_adam(0.1, 0.9, 0.99, _TAU)
  (found,) = _points(corrected, [(-0.1, 0.2)], tf.float32)
  assert found == pytest.approx([0.1, -0.1], rel=0.2)
  (plain,) = _points(build_fed_opt(0.1, 'adam'), [(-1.0, 2.0)])
  # 0.1 * (0.1 * 1) / (sqrt(0.01) * 1 + 1e-3).
  assert plain == pytest.approx([0.01 / 0.101, -0.02 / 0.201])


def test_without_beta_1_the_state_has_no_mean():
  state = build_fed_opt(0.1, 'yogi', beta_1=0.0).initialize(
    tf.TensorSpec([2], tf.float32)
  )
  assert list(state) == ['learning_rate', 'preconditioner']


def test_entry_without_any_gradient_stays():
  found = _points(build_fed_opt(0.1, 'yogi'), [(0.0, 1.0), (0.0, 1.0)])
  assert [point[0] for point in found] == [0, 0]


@pytest.mark.parametrize(
  ('given', 'words'),
  [
    (dict(rule='lamb'), "`rule` must be one of adagrad, adam, yogi, found 'la"),
    (
      dict(learning_rate=-0.1),
      '`learning_rate` must be at least 0, found -0.1',
    ),
    (dict(beta_1=1.0), '`beta_1` must be at least 0 and below 1, found 1.0'),
    (dict(beta_2=-0.5), '`beta_2` must be at least 0 and below 1, found -0.5'),
    (dict(epsilon=0), '`epsilon` must be above 0, found 0'),
  ],
)
def test_refuses(given, words):
  with pytest.raises(ValueError, match=words):
    build_fed_opt(**dict(learning_rate=0.1, rule='adam') | given)
