"""Gradients within a bound, beyond it, and not finite."""

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.optimizers.build import clip_by_global_norm
from tff_fedfish.runtime.in_process_context import set_in_process_context

_SGD = linear_models.sgd(0.5)


def _change(optimizer, *gradients):
  """Returns minus the weights after a step from 0."""
  gradients = tuple(tf.constant(g, tf.float32) for g in gradients)
  weights = tuple(map(tf.zeros_like, gradients))
  state = optimizer.initialize(
    tuple(tf.TensorSpec(g.shape, g.dtype) for g in gradients)
  )
  _, weights = optimizer.next(state, weights, gradients)
  return [-w.numpy() for w in weights]


def test_norm_is_over_all_tensors():
  # |(3, 4, 12)| = 13, bound 6.5: half of it, times the rate of 0.5.
  first, second = _change(clip_by_global_norm(_SGD, 6.5), [3.0, 4.0], [[-12.0]])
  np.testing.assert_allclose(first, [0.75, 1.0], rtol=1e-6)
  np.testing.assert_allclose(second, [[-3.0]], rtol=1e-6)


def test_gradients_within_the_bound_stay_bit_for_bit():
  gradients = np.random.RandomState(5).randn(3, 7)
  found = _change(clip_by_global_norm(_SGD, 1e3), *gradients)
  np.testing.assert_array_equal(found, _change(_SGD, *gradients))


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_gradients_that_are_not_finite_stay_so(bad):
  found = _change(clip_by_global_norm(_SGD, 1.0), [1.0, bad], [2.0])
  assert not np.isfinite(np.concatenate(found)).any()


def test_client_that_is_not_finite_is_rejected():
  set_in_process_context()
  process = build_fed_avg(
    linear_models.scalar_model(),
    client_optimizer=clip_by_global_norm(linear_models.sgd(0.1), 1.0),
    server_optimizer=linear_models.sgd(1.0),
  )
  clients = [([1.0], [2.0]), ([1.0], [np.inf])]
  datasets = [linear_models.batches(x, y, 1) for x, y in clients]
  output = process.next(process.initialize(), datasets)
  counts = output.metrics['client_work']['clients']
  assert counts['num_non_finite_clients'] == 1
  # The other's gradient of -2 is cut to -1: 0.1 on.
  (theta,) = process.get_model_weights(output.state).trainable
  assert float(theta) == pytest.approx(0.1)


def test_sparse_gradients_are_made_dense():
  optimizer = clip_by_global_norm(_SGD, 5.0)
  weights = tf.zeros([3, 1])
  # Row 1 twice: 3 + 3 in sum, and 8 in row 2: of norm 10, so halved.
  gradients = tf.IndexedSlices(
    tf.constant([[3.0], [3.0], [8.0]]), tf.constant([1, 1, 2]), [3, 1]
  )
  state = optimizer.initialize(tf.TensorSpec([3, 1], tf.float32))
  _, weights = optimizer.next(state, weights, gradients)
  np.testing.assert_allclose(weights, [[0.0], [-1.5], [-2.0]], rtol=1e-6)


def test_state_is_that_of_the_optimizer():
  adam = tff.learning.optimizers.build_adam(0.1)
  clipped = clip_by_global_norm(adam, 1.0)
  spec = tf.TensorSpec([2], tf.float32)
  state = clipped.initialize(spec)
  assert list(state) == list(adam.initialize(spec))
  assert clipped.get_hparams(state) == adam.get_hparams(state)
  state = clipped.set_hparams(
    state, clipped.get_hparams(state) | {'learning_rate': 7.0}
  )
  assert state['learning_rate'] == 7.0


def test_refuses_a_bound_of_0():
  with pytest.raises(ValueError, match='`max_norm` must be above 0, found 0'):
    clip_by_global_norm(_SGD, 0)
