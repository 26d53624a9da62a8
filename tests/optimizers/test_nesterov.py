"""Nesterov momentum by hand."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.optimizers.nesterov import build_nesterov_sgd

_GRADIENTS = ((2.0, -1.0), (0.5, 4.0), (-1.0, 1.0))


def _points(optimizer):
  weights = (tf.constant([1.0, 3.0]),)
  state = optimizer.initialize((tf.TensorSpec([2], tf.float32),))
  points = []
  for gradient in _GRADIENTS:
    state, weights = optimizer.next(state, weights, (tf.constant(gradient),))
    points.append(weights[0].numpy().tolist())
  return points


def test_two_steps_by_hand():
  # Rate 0.1, mu 0.9.
  #   v = (2, -1);       step g + 0.9 v = (3.8, -1.9)
  #   v = (1.8 + 0.5, -0.9 + 4) = (2.3, 3.1); step (0.5 + 2.07, 4 + 2.79)
  found = _points(build_nesterov_sgd(0.1, 0.9))
  assert found[0] == pytest.approx([1 - 0.38, 3 + 0.19])
  assert found[1] == pytest.approx([1 - 0.38 - 0.257, 3 + 0.19 - 0.679])
  # Plain momentum takes v itself: 0.1 * 2.
  plain = _points(tff.learning.optimizers.build_sgdm(0.1, 0.9))
  assert plain[0] == pytest.approx([0.8, 3.1])


def test_without_momentum_is_plain_sgd_bit_for_bit():
  plain = tff.learning.optimizers.build_sgdm(0.3)
  assert _points(build_nesterov_sgd(0.3, 0.0)) == _points(plain)


def test_rate_can_be_set():
  optimizer = build_nesterov_sgd(0.1, 0.9)
  state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
  assert optimizer.get_hparams(state) == {'learning_rate': 0.1}
  state = optimizer.set_hparams(state, {'learning_rate': 0.2})
  state, weights = optimizer.next(state, tf.constant([0.0]), tf.constant([1.0]))
  # 0.2 (1 + 0.9).
  assert float(weights[0]) == pytest.approx(-0.38)
  assert list(state) == ['learning_rate', 'accumulator']


@pytest.mark.parametrize(
  ('given', 'words'),
  [
    ((-1, 0.9), '`learning_rate` must be at least 0, found -1'),
    ((1, 1.0), '`momentum` must be at least 0 and below 1, found 1.0'),
    ((1, -0.1), '`momentum` must be at least 0 and below 1, found -0.1'),
  ],
)
def test_refuses(given, words):
  with pytest.raises(ValueError, match=words):
    build_nesterov_sgd(*given)
