"""Every optimizer that settings can describe, built, run and counted."""

import dataclasses
import pathlib

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.config.schema import ClientWorkConfig, ServerConfig
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.optimizers.build import build_optimizer
from tff_fedfish.runtime.in_process_context import set_in_process_context

_CLIENTS = (
  dict(),
  dict(momentum=0.9),
  dict(momentum=0.9, nesterov=True),
  dict(optimizer='adamw', weight_decay=0.1, max_gradient_norm=1.0),
)
_SERVERS = (
  dict(optimizer='sgd'),
  dict(optimizer='sgd', momentum=0.9),
  dict(optimizer='sgd', momentum=0.9, nesterov=True),
  dict(optimizer='adagrad', epsilon=0.1),
  dict(optimizer='adam'),
  dict(optimizer='adam', bias_correction=True),
  dict(optimizer='adam', bias_correction=False),
  dict(optimizer='adam', bias_correction=False, beta_1=0.0),
  dict(optimizer='adamw', weight_decay=0.1),
  dict(optimizer='yogi', epsilon=1e-3),
  dict(optimizer='yogi', max_gradient_norm=0.5),
)


def _client(**settings):
  return ClientWorkConfig(num_local_epochs=1, learning_rate=0.1, **settings)


def _server(**settings):
  return ServerConfig(learning_rate=0.1, **settings)


_ALL = [_client(**s) for s in _CLIENTS] + [_server(**s) for s in _SERVERS]


def _id(settings):
  found = [
    f'{name}={getattr(settings, name)}'
    for name in ('momentum', 'nesterov', 'bias_correction', 'beta_1')
    if hasattr(settings, name)
  ]
  return '-'.join([settings.section, settings.optimizer, *found])


@pytest.mark.parametrize('settings', _ALL, ids=_id)
def test_state_is_as_large_as_plan_counts(settings):
  optimizer = build_optimizer(settings, [True])
  state = optimizer.initialize((tf.TensorSpec([5, 3], tf.float32),))
  found = [np.size(value) for value in tf.nest.flatten(state)]
  assert found.count(15) == settings.step_cost().num_state_tensors
  assert set(found) <= {1, 15}


@pytest.mark.parametrize(
  'settings',
  # One of each kind; TFF's own are everywhere.
  [
    _ALL[2],
    _ALL[3],
    *(_server(**_SERVERS[index]) for index in (2, 3, 6, 8, 10)),
  ],
  ids=_id,
)
def test_trains_in_a_learning_process(settings):
  set_in_process_context()
  # Momentum makes ten times as much of it.
  settings = dataclasses.replace(settings, learning_rate=0.02)
  optimizer = build_optimizer(settings, [False, False])
  is_client = settings.section == 'client_work'
  plain = linear_models.sgd(1.0 if is_client else 0.05)
  process = build_fed_avg(
    linear_models.linear_model(2),
    client_optimizer=optimizer if is_client else plain,
    server_optimizer=plain if is_client else optimizer,
  )
  random = np.random.RandomState(6)
  x = random.randn(3, 6, 2)
  data = [linear_models.batches(c, c @ [1.0, -2.0] + 0.5, 2) for c in x]
  state, losses = process.initialize(), []
  for _ in range(3):
    output = process.next(state, data)
    state = output.state
    losses.append(_loss(process, state, x))
    counts = output.metrics['client_work']['clients']
    assert counts['num_non_finite_clients'] == 0
  assert losses[-1] < losses[0] < _loss(process, process.initialize(), x)


def _loss(process, state, x):
  kernel, bias = map(np.array, process.get_model_weights(state).trainable)
  return np.mean((x @ kernel + bias - x @ [1.0, -2.0] - 0.5) ** 2)


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    (_client(), tff.learning.optimizers.build_sgdm(0.1)),
    (_client(momentum=0.9), tff.learning.optimizers.build_sgdm(0.1, 0.9)),
    (_server(optimizer='sgd'), tff.learning.optimizers.build_sgdm(0.1)),
    (
      _server(beta_1=0.8, beta_2=0.9, epsilon=0.01, bias_correction=True),
      tff.learning.optimizers.build_adam(0.1, 0.8, 0.9, 0.01),
    ),
    (_server(), tff.learning.optimizers.build_adam(0.1)),
  ],
)
def test_what_tff_has_is_tffs(settings, expected):
  found = build_optimizer(settings, [True])
  weights, gradients = tf.constant([1.0, -2.0]), tf.constant([0.5, 3.0])
  taken = []
  for optimizer in (found, expected):
    state = optimizer.initialize(tf.TensorSpec([2], tf.float32))
    assert optimizer.get_hparams(state) == expected.get_hparams(state)
    state = optimizer.set_hparams(state, {**optimizer.get_hparams(state)})
    first = optimizer.next(state, weights, gradients)
    taken.append((state, first, optimizer.next(*first, gradients)))
  tf.nest.map_structure(np.testing.assert_array_equal, *taken)


def test_adagrad_has_no_momentum():
  # A server's first step, from 0 on the gradient 3: 0.1 * 3 / 3 for all.
  optimizer = build_optimizer(_server(optimizer='adagrad'), [True])
  state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
  state, weights = optimizer.next(state, tf.zeros([1]), tf.constant([3.0]))
  assert float(weights[0]) == pytest.approx(-0.1)
  # With momentum the gradient 0 would move it further.
  _, after = optimizer.next(state, weights, tf.zeros([1]))
  assert float(after[0]) == float(weights[0])


def test_a_nesterov_server_step_by_hand():
  # DiLoCo's 0.7 and 0.9: -0.7 (1 + 0.9) on the pseudo-gradient 1; then
  # v = 0.9 + 1, -0.7 (1 + 0.9 * 1.9).
  server = ServerConfig(
    optimizer='sgd', learning_rate=0.7, momentum=0.9, nesterov=True
  )
  optimizer = build_optimizer(server, [True])
  weights = tf.zeros([1])
  state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
  state, weights = optimizer.next(state, weights, tf.ones([1]))
  assert float(weights[0]) == pytest.approx(-1.33)
  state, weights = optimizer.next(state, weights, tf.ones([1]))
  assert float(weights[0]) == pytest.approx(-1.33 - 1.897)


def test_what_decays_is_what_the_model_calls_a_matrix():
  # Both have rank 2, as the stacked biases of a transformer's layers have.
  settings = _client(optimizer='adamw', weight_decay=1.0)
  optimizer = build_optimizer(settings, [True, False])
  weights = (tf.ones([2, 2]), tf.ones([2, 2]))
  state = optimizer.initialize((tf.TensorSpec([2, 2], tf.float32),) * 2)
  _, found = optimizer.next(state, weights, tuple(map(tf.zeros_like, weights)))
  assert [float(w[0, 0]) < 1 for w in found] == [True, False]


@pytest.mark.parametrize(
  ('settings', 'num_operations'),
  [
    # w - rate g; a product and a sum for v, and again for g + mu v.
    (_client(), 2),
    (_client(momentum=0.9), 4),
    (_client(momentum=0.9, nesterov=True), 6),
    # 3 and 4 for the moments, 5 for the step; 2 to decay; 5 to clip.
    (_client(optimizer='adamw'), 12),
    (_client(optimizer='adamw', weight_decay=0.1), 14),
    (_client(max_gradient_norm=1.0), 7),
    (_server(), 12),
    (_server(bias_correction=False), 12),
    # 2 for the sum of squares; 3, 5 and 5.
    (_server(optimizer='adagrad'), 7),
    (_server(optimizer='yogi'), 13),
  ],
)
def test_operations_by_hand(settings, num_operations):
  assert settings.step_cost().num_operations == num_operations


def test_the_form_of_adams_epsilon_is_the_documented_one():
  # |g| = epsilon = 1e-7: epsilon acts as 31.6 times itself in the first step,
  # 1 / sqrt(1 - 0.999), as it is added before the bias correction.
  settings = _server()
  assert (settings.optimizer, settings.epsilon) == ('adam', 1e-7)
  optimizer = build_optimizer(settings, [True])
  state = optimizer.initialize(tf.TensorSpec([], tf.float32))
  _, weight = optimizer.next(state, tf.constant(0.0), tf.constant(1e-7))
  assert float(weight) == pytest.approx(-0.1 / (1 + 31.6), rel=1e-3)
  docs = pathlib.Path(__file__).parents[2] / 'docs'
  row = next(
    line
    for line in (docs / 'settings.md').read_text('utf-8').splitlines()
    if line.startswith('| `server.epsilon` |')
  )
  assert 'before the bias correction' in row
  assert '31.6 times' in row
  assert 'rate / (1 + 31.6)' in (docs / 'optimizers.md').read_text('utf-8')
