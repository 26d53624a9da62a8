"""How many clients a mean is worth, of masses by hand and of methods."""

import numpy as np
import planned_configs
import pytest
import tensorflow as tf

from tff_fedfish.data import randomness
from tff_fedfish.data.sequences import Sequences, to_dataset
from tff_fedfish.evaluation.effective_clients import EffectiveClients
from tff_fedfish.training import learning_setup


def _dataset(*values):
  return tf.data.Dataset.from_tensor_slices(list(values)).batch(1)


def _sum_of_squares(trainable, dataset, client_weight):
  total = dataset.reduce(tf.zeros(2), lambda s, x: s + tf.square(x[0]))
  return [client_weight * total, client_weight * trainable[0]]


@pytest.fixture
def effective():
  return EffectiveClients(_sum_of_squares, ['a', 'b'])


def test_by_hand(effective):
  # a: 2 (1, 4) and 1 (1, 0) + (1, 0) = (2, 8) and (2, 0): 16 / 8 = 2 and 1.
  # b: 2 x 1 and 1 x 4: 36 / 20 = 1.8.
  effective.add((tf.constant(1.0),), _dataset([1.0, 2.0]), 2)
  effective.add((tf.constant(4.0),), _dataset([1.0, 0.0], [1.0, 0.0]), 1)
  found = effective.summary()
  assert found['tensors'] == pytest.approx({'a': 1.5, 'b': 1.8})
  # Three coordinates.
  assert found['mean'] == pytest.approx((2 + 1 + 1.8) / 3)


def test_coordinates_without_mass_do_not_count(effective):
  effective.add((tf.constant(1.0),), _dataset([1.0, 0.0]), 2)
  effective.add((tf.constant(3.0),), _dataset([1.0, 0.0]), 2)
  # a: 2, and nothing; b: 8^2 / (4 + 36) = 1.6.
  assert effective.summary() == {
    'mean': pytest.approx(1.8),
    'tensors': pytest.approx({'a': 2.0, 'b': 1.6}),
  }


@pytest.mark.parametrize('scale', [1e-30, 1e-12, 1.0, 2e10, 1e30])
def test_masses_of_any_size(effective, scale):
  for _ in range(4):
    effective.add((tf.constant(scale),), _dataset([scale**0.5, 0.0]), 1)
  # And one that hardly counts.
  effective.add((tf.constant(1e-3 * scale),), _dataset([0.0, 0.0]), 1)
  # 4.001^2 / 4.000001
  assert effective.summary()['tensors'] == pytest.approx(
    {'a': 4.0, 'b': 4.002}, rel=1e-5
  )


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_client_that_is_not_finite_has_no_mass(effective, bad):
  effective.add((tf.constant(1.0),), _dataset([1.0, 2.0]), 2)
  effective.add((tf.constant(bad),), _dataset([1.0, 2.0]), 2)
  effective.add((tf.constant(1.0),), _dataset([bad, 2.0]), 2)
  assert effective.summary() == {'mean': 1.0, 'tensors': {'a': 1.0, 'b': 1.0}}


def test_no_clients(effective):
  assert effective.summary() == {
    'mean': None,
    'tensors': {'a': None, 'b': None},
  }


def _clients(config):
  """Returns 3 clients of 1, 4 and 5 sequences."""
  clients = []
  for number, size in enumerate((1, 4, 5)):
    random = np.random.RandomState(number)
    tokens = random.randint(5, size=(size, 5)).astype(np.int32)
    seeds = None
    if config.algorithm.draws_labels:
      seeds = randomness.noise_seeds(1, 1, b'%d' % number, size)
    clients.append(
      Sequences(tokens, np.full(size, 4, np.int32), noise_seeds=seeds)
    )
  return clients


@pytest.mark.parametrize(
  'settings',
  [
    dict(client_weighting='uniform', fisher_reduction='mean'),
    dict(fisher_estimator='true', relative_floor=0.5),
    dict(max_mass_ratio=1.0),
    pytest.param(dict(name='fed_avg'), marks=pytest.mark.slow),
    pytest.param(dict(), marks=pytest.mark.slow),
    pytest.param(dict(ragged_correction=True), marks=pytest.mark.slow),
    pytest.param(dict(fisher_estimator='example_sq'), marks=pytest.mark.slow),
    pytest.param(
      dict(fisher_normalization='tensor_mean'), marks=pytest.mark.slow
    ),
  ],
  ids=lambda settings: '-'.join(map(str, settings.values())) or 'default',
)
def test_mass_is_what_the_round_weighs_with(settings):
  config = planned_configs.by_hand(
    server__optimizer='sgd',
    server__learning_rate=1.0,
    client_work__learning_rate=0.5,
    **{f'algorithm__{name}': value for name, value in settings.items()},
  )
  clients = _clients(config)
  process = learning_setup.build_learning_process(config)
  state = process.initialize()
  datasets = [to_dataset(rows, 2) for rows in clients]
  if config.algorithm.max_mass_ratio:
    # Only a round after another one is bounded.
    state = process.next(state, datasets).state
  before = process.get_model_weights(state).trainable
  output = process.next(state, datasets)
  after = process.get_model_weights(output.state).trainable
  if config.algorithm.max_mass_ratio:
    assert output.metrics['aggregator']['num_bounded_clients'] > 0

  evaluator = learning_setup.build_evaluator(config)
  client_mass = tf.function(learning_setup.build_client_mass(config, state))
  numerators, masses = [], []
  for rows in clients:
    trained = evaluator.fine_tune(
      tuple(before), rows, num_local_epochs=2, learning_rate=0.5
    )
    is_uniform = config.algorithm.client_weighting == 'uniform'
    weight = tf.constant(1.0 if is_uniform else float(len(rows)))
    mass = client_mass(trained, to_dataset(rows, 2), weight)
    masses.append(mass)
    numerators.append(
      [m * (b - t) for m, b, t in zip(mass, before, trained, strict=True)]
    )
  steps = [
    sum(n[i] for n in numerators) / sum(m[i] for m in masses)
    for i in range(len(before))
  ]
  assert max(np.abs(step).max() for step in steps) > 0.1
  for found, old, step in zip(after, before, steps, strict=True):
    np.testing.assert_allclose(old - step, found, rtol=1e-4, atol=1e-6)


def test_last_epoch_is_not_replayed():
  config = planned_configs.shipped(
    'mnist_by_writer', algorithm__fisher_estimator='last_epoch'
  )
  assert learning_setup.build_client_mass(config) is None
