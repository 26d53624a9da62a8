"""Every optimizer that settings describe: its steps, its state, its rates."""

import dataclasses

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import build_fed_avg
from tff_fedfish.config.learning_rates import rate_of_round
from tff_fedfish.config.schema import ClientWorkConfig, ServerConfig
from tff_fedfish.optimizers import (
  build_adamw,
  build_fed_opt,
  build_nesterov_sgd,
  build_optimizer,
  clip_by_global_norm,
)
from tff_fedfish.runtime.in_process_context import set_in_process_context

_SGD = linear_models.sgd(0.5)
_TFFS = tff.learning.optimizers


def _client(**settings):
  return ClientWorkConfig(num_local_epochs=1, learning_rate=0.1, **settings)


def _server(**settings):
  return ServerConfig(**dict(learning_rate=0.1) | settings)


_NESTEROV = dict(momentum=0.9, nesterov=True)
_PLAIN_ADAM = dict(bias_correction=False)


def _points(optimizer, gradients, start=None, rate=None):
  """Returns the weights after each step, from 0 unless told otherwise."""
  gradients = [[tf.constant(t) for t in tensors] for tensors in gradients]
  weights = tuple(map(tf.zeros_like, gradients[0]))
  if start is not None:
    weights = tuple(map(tf.constant, start))
  specs = tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
  state, points = optimizer.initialize(specs), []
  if rate is not None:
    hparams = optimizer.get_hparams(state) | {'learning_rate': rate}
    state = optimizer.set_hparams(state, hparams)
  for gradient in gradients:
    state, weights = optimizer.next(state, weights, tuple(gradient))
    points.append([w.numpy() for w in weights])
  return points


def _numbers(*values):
  return np.array(values, np.float32)


@pytest.mark.parametrize(
  ('settings', 'num_operations'),
  [
    # w - rate g; a product and a sum for v, and again for g + mu v.
    (_client(), 2),
    (_client(momentum=0.9), 4),
    (_client(**_NESTEROV), 6),
    (_server(optimizer='sgd', **_NESTEROV), 6),
    # 3 and 4 for the moments, 5 for the step; 2 to decay; 5 to clip.
    (_client(optimizer='adamw'), 12),
    (_client(optimizer='adamw', weight_decay=0.1), 14),
    (_client(max_gradient_norm=1.0), 7),
    (_server(), 12),
    (_server(**_PLAIN_ADAM), 12),
    (_server(**_PLAIN_ADAM, beta_1=0.0), 12),
    # 2 for the sum of squares; 3, 5 and 5.
    (_server(optimizer='adagrad', epsilon=0.1), 7),
    (_server(optimizer='yogi'), 13),
    (_server(optimizer='yogi', max_gradient_norm=0.5), 18),
  ],
  ids=lambda value: str(getattr(value, 'changed', str)()),
)
def test_costs_that_plan_counts(settings, num_operations):
  cost = settings.step_cost()
  assert cost.num_operations == num_operations
  optimizer = build_optimizer(settings, [True])
  state = optimizer.initialize((tf.TensorSpec([5, 3], tf.float32),))
  sizes = [np.size(value) for value in tf.nest.flatten(state)]
  assert sizes.count(15) == cost.num_state_tensors
  assert set(sizes) <= {1, 15}


@pytest.mark.parametrize(
  ('client', 'server'),
  [
    pytest.param(
      _client(**_NESTEROV),
      _server(optimizer='adagrad', epsilon=0.1),
      marks=pytest.mark.slow,
    ),
    (
      _client(optimizer='adamw', weight_decay=0.1, max_gradient_norm=1.0),
      _server(optimizer='yogi', epsilon=1e-3, max_gradient_norm=0.5),
    ),
  ],
  ids=lambda settings: settings.optimizer,
)
def test_trains_in_a_learning_process(client, server):
  set_in_process_context()
  # Momentum makes ten times as much of the rate.
  client, server = (
    build_optimizer(dataclasses.replace(s, learning_rate=0.02), [False, False])
    for s in (client, server)
  )
  process = build_fed_avg(
    linear_models.linear_model(2),
    client_optimizer=client,
    server_optimizer=server,
  )
  x = np.random.RandomState(6).randn(3, 6, 2)
  data = [linear_models.batches(c, c @ [1.0, -2.0] + 0.5, 2) for c in x]
  state, losses = process.initialize(), []
  for _ in range(4):
    kernel, bias = map(np.array, process.get_model_weights(state).trainable)
    losses.append(np.mean((x @ kernel + bias - x @ [1.0, -2.0] - 0.5) ** 2))
    state = process.next(state, data).state
  assert losses[3] < losses[1] < losses[0]


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    (_client(), _TFFS.build_sgdm(0.1)),
    (_client(momentum=0.9), _TFFS.build_sgdm(0.1, 0.9)),
    (_server(optimizer='sgd'), _TFFS.build_sgdm(0.1)),
    (
      _server(beta_1=0.8, beta_2=0.9, epsilon=0.01, bias_correction=True),
      _TFFS.build_adam(0.1, 0.8, 0.9, 0.01),
    ),
    (_server(optimizer='adamw'), _TFFS.build_adam(0.1)),
  ],
)
def test_what_tff_has_is_tffs_bit_for_bit(settings, expected):
  optimizers = build_optimizer(settings, [True]), expected
  spec = tf.TensorSpec([2], tf.float32)
  states = [optimizer.initialize(spec) for optimizer in optimizers]
  tf.nest.map_structure(np.testing.assert_array_equal, *states)
  hparams = [o.get_hparams(s) for o, s in zip(optimizers, states, strict=True)]
  assert hparams[0] == hparams[1]
  gradients = [[_numbers(0.5, 3)], [_numbers(-1, 0.1)]]
  found, wanted = (_points(o, gradients, rate=0.3) for o in optimizers)
  np.testing.assert_array_equal(found, wanted)


def test_nesterov_by_hand():
  # Rate 0.1, mu 0.9.
  #   v = (2, -1);       step g + 0.9 v = (3.8, -1.9)
  #   v = (1.8 + 0.5, -0.9 + 4) = (2.3, 3.1); step (0.5 + 2.07, 4 + 2.79)
  gradients = [[_numbers(2, -1)], [_numbers(0.5, 4)]]
  optimizer = build_nesterov_sgd(0.1, 0.9)
  first, second = _points(optimizer, gradients, [_numbers(1, 3)])
  assert first[0] == pytest.approx([1 - 0.38, 3 + 0.19])
  assert second[0] == pytest.approx([1 - 0.38 - 0.257, 3 + 0.19 - 0.679])
  # At the rate that is set.
  ((weights,),) = _points(optimizer, [[_numbers(1)]], rate=0.2)
  assert weights == pytest.approx([-0.38])


def test_adamw_by_hand():
  # Rate 0.1, beta_1 0.9, beta_2 0.99, epsilon 0.1, decay 0.5; w = 2, g = 3:
  #   m = 0.3, v = 0.09, sqrt(1 - 0.99) / (1 - 0.9) = 1
  #   0.1 * 0.3 / (0.3 + 0.1) = 0.075; decay 0.1 * 0.5 * 2 = 0.1
  optimizer = build_adamw(
    0.1, beta_1=0.9, beta_2=0.99, epsilon=0.1, weight_decay=0.5
  )
  kernel, bias = _numbers(2)[None], _numbers(2)
  gradients = [[_numbers(3)[None], _numbers(3)]]
  [(kernel, bias)] = _points(optimizer, gradients, [kernel, bias])
  assert kernel.item() == pytest.approx(2 - 0.075 - 0.1, rel=1e-6)
  # Without flags vectors do not decay.
  assert bias.item() == pytest.approx(2 - 0.075, rel=1e-6)


def test_what_decays_is_what_the_model_calls_a_matrix():
  # Both have rank 2, as the stacked biases of a transformer's layers have.
  settings = _client(optimizer='adamw', weight_decay=0.2)
  optimizer = build_optimizer(settings, [True, False])
  weights, zeros = np.ones([2, 2, 2], np.float32), np.zeros([2, 2, 2], 'f')
  for rate, factor in ((0.1, 0.98), (0.5, 0.9)):
    # Not normalized by the second moment, unlike L2 regularization.
    *_, (kernel, bias) = _points(optimizer, [zeros] * 3, weights, rate)
    np.testing.assert_allclose(kernel, weights[0] * factor**3, rtol=1e-6)
    np.testing.assert_array_equal(bias, weights[1])


@pytest.mark.parametrize(
  ('rule', 'beta_1', 'expected'),
  # From 0, Delta (0.1, -0.2) and then (0.3, 0.1); eta 0.1, tau 1e-3, beta_2
  # 0.99.
  [
    # v: 0.01 and 0.04, then 0.1 and 0.05. 0.1 * 0.1 / 0.101 = 0.0990099.
    ('adagrad', 0.0, (0.099009901, -0.0995024876, 0.1935791765, -0.0549802376)),
    # m = 0.01, v = 1e-4: 0.1 * 0.01 / (0.01 + 0.001) = 0.0909091.
    ('adam', 0.9, (0.0909090909, -0.0952380952, 0.2105154525, -0.1296155618)),
    # v = 0 - 0.01 * 0.01 * sign(0 - 0.01): as Adam's in the first round.
    ('yogi', 0.9, (0.0909090909, -0.0952380952, 0.210457468, -0.129483674)),
  ],
)
def test_fed_opt_vectors(rule, beta_1, expected):
  optimizer = build_fed_opt(0.1, rule, beta_1=beta_1, beta_2=0.99, epsilon=1e-3)
  gradients = -np.array([[(0.1, -0.2)], [(0.3, 0.1)]])
  # TensorFlow would make a float32 of the rate.
  points = _points(optimizer, gradients, rate=tf.constant(0.1, tf.float64))
  np.testing.assert_allclose(np.ravel(points), expected, rtol=0, atol=6e-11)


def test_fed_opt_where_moments_are_0():
  # An entry without any gradient stays.
  points = _points(build_fed_opt(0.1, 'yogi'), [[_numbers(0, 1)]] * 2)
  assert [point[0][0] for point in points] == [0, 0]
  # Adagrad has no momentum: a gradient of 0 does not move what one of 3 moved.
  adagrad = build_optimizer(_server(optimizer='adagrad'), [True])
  points = _points(adagrad, [[_numbers(3)], [_numbers(0)]])
  assert np.ravel(points) == pytest.approx([-0.1, -0.1])
  state = adagrad.initialize(tf.TensorSpec([2], tf.float32))
  assert list(state) == ['learning_rate', 'preconditioner']


def test_norm_is_over_all_tensors():
  # |(3, 4, 12)| = 13, bound 6.5: half of it, times the rate of 0.5.
  gradients = [[_numbers(3, 4), _numbers(-12)]]
  [(first, second)] = _points(clip_by_global_norm(_SGD, 6.5), gradients)
  np.testing.assert_allclose(first, [-0.75, -1.0], rtol=1e-6)
  np.testing.assert_allclose(second, [3.0], rtol=1e-6)
  # Within the bound they stay bit for bit.
  clipped = _points(clip_by_global_norm(_SGD, 13.1), gradients)
  for found, expected in zip(
    clipped[0], _points(_SGD, gradients)[0], strict=True
  ):
    np.testing.assert_array_equal(found, expected)


def test_infinite_gradients_are_not_hidden():
  # The client that has them is rejected by its weights.
  gradients = [[_numbers(np.inf, 1), _numbers(2)]]
  [(first, second)] = _points(clip_by_global_norm(_SGD, 1.0), gradients)
  assert not np.isfinite([*first, *second]).any()


def test_sparse_gradients_are_made_dense():
  optimizer = clip_by_global_norm(_SGD, 5.0)
  # Row 1 twice: 3 + 3 in sum, and 8 in row 2: of norm 10, so halved.
  gradients = tf.IndexedSlices(
    tf.constant([[3.0], [3.0], [8.0]]), tf.constant([1, 1, 2]), [3, 1]
  )
  state = optimizer.initialize(tf.TensorSpec([3, 1], tf.float32))
  _, weights = optimizer.next(state, tf.zeros([3, 1]), gradients)
  np.testing.assert_allclose(weights, [[0.0], [-1.5], [-2.0]], rtol=1e-6)


def _rates(rounds, schedule, warmup=0, num_rounds=None, fraction=None):
  server = _server(
    learning_rate=0.8,
    learning_rate_schedule=schedule,
    warmup_rounds=warmup,
    schedule_rounds=num_rounds,
    final_fraction=fraction,
  )
  return [rate_of_round(server, round_num) for round_num in rounds]


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    # 0.8 r / 4; the last round of warm-up has the base rate.
    (('constant', 4), [0.2, 0.4, 0.6, 0.8, 0.8]),
    # Warm-up 0.4, 0.8. Then t = 1, 2, 3, 4 of 4, from 0.8 to 0.2, half way 0.5:
    # 0.2 + 0.6 (1 + cos(t pi / 4)) / 2, cos(pi / 4) = 0.7071068.
    (
      ('cosine', 2, 4, 0.25),
      [0.4, 0.8, 0.712132, 0.5, 0.287868, 0.2, 0.2, 0.2],
    ),
    # It ends at 0 unless told otherwise: 0.4 (1 + cos(t pi / 4)).
    (('cosine', 0, 4), [0.682843, 0.4, 0.117157, 0, 0]),
    # A factor of sqrt(0.25) = 0.5 a round, for two rounds after warm-up.
    (('exponential', 2, 2, 0.25), [0.4, 0.8, 0.4, 0.2, 0.2]),
  ],
)
def test_rates_by_hand(settings, expected):
  rounds = range(1, 1 + len(expected))
  assert _rates(rounds, *settings) == pytest.approx(expected, rel=1e-5)
  # A constant one to the last bit.
  assert _rates([1, 2, 10**7], 'constant') == [0.8, 0.8, 0.8]
