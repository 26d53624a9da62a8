"""Runs whose clients train by DP-SGD: accounts and resumption."""

import csv
import shutil

import numpy as np
import pytest
from personal_runs import CONFIG, overrides, train

from tff_fedfish.config import load as config_loading
from tff_fedfish.evaluation import barrier
from tff_fedfish.rounds import privacy
from tff_fedfish.run import checkpoints, cohorts, model_state, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

# Three of five clients in a round, each with 12 images; the linear model.
_SETTINGS = dict(
  algorithm__name='fed_avg',
  client_splits__validation_fraction=0.0,
  client_work__local_batch_size=5,
  cohorts__cohort_size=3,
  evaluation__num_clients=0,
  local_privacy__clip_norm=0.5,
  local_privacy__noise_multiplier=1.0,
  local_privacy__sampling='poisson',
)


def _train(corpus, run, **settings):
  """Returns the rows of metrics.csv after round 0."""
  assert train(corpus, run, **_SETTINGS | settings) == 0
  return tables.read_metrics(run / 'metrics.csv')[1:]


def _accounts(run):
  with open(run / 'privacy.csv', newline='') as file:
    return {row['client_id']: row for row in csv.DictReader(file)}


def _weights(run):
  found = checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))
  return found.tensors


def _opened(corpus, **settings):
  config = config_loading.load_config(
    CONFIG, overrides(corpus, **_SETTINGS | settings)
  )
  found = check.check_run(config)
  rows = row_source(config).training_rows(found.corpus, found.tokenizer)
  return config, found.split.participating, rows


@pytest.mark.parametrize(
  'sampling',
  [pytest.param('shuffled', marks=pytest.mark.slow), 'poisson'],
)
def test_a_resumed_run_is_an_uninterrupted_one(sampling, small_mnist, tmp_path):
  settings = {'local_privacy__sampling': sampling, 'training__num_rounds': 4}
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  rounds = _train(small_mnist, whole, **settings)
  _train(small_mnist, resumed, **settings | {'training__num_rounds': 2})
  # As of a later round: the run was killed between it and the row.
  shutil.copy(whole / 'privacy.csv', resumed / 'privacy.csv')
  _train(small_mnist, resumed, **settings)
  for name in ('metrics.csv', 'privacy.csv'):
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()
  expected = _weights(whole)
  for name, tensor in _weights(resumed).items():
    np.testing.assert_array_equal(tensor, expected[name])
  # The accounts, from the draws themselves.
  config, participating, rows = _opened(small_mnist, **settings)
  num_rounds = {}
  for round_num in range(1, 5):
    for client in cohorts.cohort(config, participating, rows, round_num):
      num_rounds[client.client_id] = 1 + num_rounds.get(client.client_id, 0)
  found, epsilons = _accounts(whole), []
  assert len(found) == len(num_rounds)
  for client_id, count in num_rounds.items():
    # Two epochs of 12 rows in batches of 5.
    num_steps = count * 2 * (12 // 5)
    epsilons.append(privacy.epsilon(5 / 12, 1.0, num_steps, 1e-5))
    row = found[client_id.decode()]
    assert row['num_examples'] == '12'
    assert row['num_rounds'] == str(count)
    assert row['num_steps'] == str(num_steps)
    assert float(row['epsilon']) == epsilons[-1]
  assert rounds[-1]['privacy/epsilon_max'] == max(epsilons)
  assert rounds[-1]['privacy/epsilon_mean'] == pytest.approx(np.mean(epsilons))
  largest = [row['privacy/epsilon_max'] for row in rounds]
  assert largest == sorted(largest) and largest[0] > 0


@pytest.mark.slow
def test_a_last_smaller_batch_is_dropped_and_counted(small_mnist, tmp_path):
  run = tmp_path / 'run'
  (row,) = _train(
    small_mnist,
    run,
    local_privacy__sampling='shuffled',
    local_privacy__noise_multiplier=0.0,
    client_work__max_sequences_per_client=9,
    training__num_rounds=1,
  )
  # Three clients, twice the one batch of 5 of the 9 images that a client takes.
  assert row['train/num_sequences'] == 3 * 2 * 5
  assert row['train/num_dropped_sequences'] == 3 * (12 - 5)
  # Without noise there is no epsilon.
  assert not (run / 'privacy.csv').exists()
  assert 'privacy/epsilon_mean' not in row


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    {'algorithm__name': 'fed_prox', 'algorithm__mu': 0.1},
    {'algorithm__name': 'moon', 'local_privacy__sampling': 'shuffled'},
    {
      'algorithm__name': 'scaffold',
      'client_work__num_local_epochs': 1,
      'client_work__num_local_steps': 3,
      'client_work__max_sequences_per_client': None,
    },
    {
      'algorithm__name': 'fed_fish',
      'algorithm__fisher_estimator': 'last_epoch',
    },
    {'algorithm__name': 'fed_sgd', 'client_work__num_local_epochs': 1},
  ],
  ids=lambda settings: settings['algorithm__name'],
)
def test_every_method_trains(settings, small_mnist, tmp_path):
  (row,) = _train(
    small_mnist, tmp_path / 'run', training__num_rounds=1, **settings
  )
  assert row['train/num_non_finite_clients'] == 0
  assert row['privacy/epsilon_max'] > 0
  assert row['train/update_is_all_zero'] == 0


@pytest.mark.slow
@pytest.mark.parametrize('name', ['local_only', 'fed_fomo'])
def test_clients_with_models_of_their_own(name, small_mnist, tmp_path):
  settings = {
    'algorithm__name': name,
    'client_splits__validation_fraction': 0.2,
    'cohorts__cohort_size': None,
    'training__num_rounds': 2,
  }
  run = tmp_path / 'run'
  rounds = _train(small_mnist, run, **settings)
  assert rounds[-1]['train/num_non_finite_clients'] == 0
  _, participating, rows = _opened(small_mnist, **settings)
  found = _accounts(run)
  assert len(found) == len(participating)
  for client_id in participating:
    # Validation rows are no part of what is sampled.
    assert rows.num_training_rows(client_id) < 12
    expected = str(rows.num_training_rows(client_id))
    assert found[client_id.decode()]['num_examples'] == expected


@pytest.mark.slow
def test_the_barrier_trains_clients_with_the_same_noise(
  small_mnist, tmp_path, monkeypatch
):
  trained, train = [], barrier._train
  monkeypatch.setattr(
    barrier, '_train', lambda *args: trained.append(train(*args)) or trained[-1]
  )
  run = tmp_path / 'run'
  (row,) = _train(
    small_mnist,
    run,
    training__num_rounds=1,
    evaluation__barrier_every_num_rounds=1,
  )
  assert row['barrier/num_failed_clients'] == 0
  # The round's step, of rate 1, is the mean of the replayed deltas.
  start, end = (
    checkpoints.load_checkpoint(checkpoints.path_of(run / 'checkpoints', n))
    for n in (0, 1)
  )
  weights = [client['client_weight'] for client in trained]
  means = [
    sum(weight * delta for weight, delta in zip(weights, deltas, strict=True))
    / sum(weights)
    for deltas in zip(*(client['update'] for client in trained), strict=True)
  ]
  for name, mean in model_state.trainable_tensors(means).items():
    step = start.tensors[name] - end.tensors[name]
    np.testing.assert_allclose(step, mean, atol=1e-5)
