"""Runs whose clients train by DP-SGD: accounts, resumption, refusals."""

import csv
import functools
import shutil

import numpy as np
import pytest
import small_runs

from tff_fedfish.config import load as config_loading
from tff_fedfish.evaluation import barrier
from tff_fedfish.rounds import privacy
from tff_fedfish.run import (
  checkpoints,
  cohorts,
  model_state,
  tables,
)
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

_SETTINGS = dict(
  algorithm__name='fed_avg',
  local_privacy__clip_norm=0.5,
  local_privacy__noise_multiplier=1.0,
  client_work__local_batch_size=2,
)


def _accounts(run):
  with open(run / 'privacy.csv', newline='') as file:
    return {row['client_id']: row for row in csv.DictReader(file)}


def _weights(run):
  found = checkpoints.load_checkpoint(checkpoints.resolve_checkpoint(run))
  return found.tensors


def _opened(inputs, **settings):
  config = config_loading.load_config(
    small_runs.CONFIG, small_runs.overrides(*inputs, **settings)
  )
  found = check.check_run(config)
  rows = row_source(config).training_rows(found.corpus, found.tokenizer)
  return config, found.split.participating, rows


@pytest.mark.parametrize(
  # `test_a_last_smaller_batch_is_dropped_and_counted` is shuffled and stays.
  'sampling',
  [pytest.param('shuffled', marks=pytest.mark.slow), 'poisson'],
)
def test_a_resumed_run_is_an_uninterrupted_one(
  sampling, small_inputs, tmp_path
):
  settings = _SETTINGS | {'local_privacy__sampling': sampling}
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  assert small_runs.train(small_inputs, whole, **settings) == 0
  half = settings | {'training__num_rounds': 2}
  assert small_runs.train(small_inputs, resumed, **half) == 0
  # As of a later round: the run was killed between it and the row.
  shutil.copy(whole / 'privacy.csv', resumed / 'privacy.csv')
  assert small_runs.train(small_inputs, resumed, **settings) == 0
  for name in ('metrics.csv', 'privacy.csv'):
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()
  expected = _weights(whole)
  for name, tensor in _weights(resumed).items():
    np.testing.assert_array_equal(tensor, expected[name])
  # The accounts, from the draws themselves.
  config, participating, rows = _opened(small_inputs, **settings)
  num_rounds = {}
  for round_num in range(1, 5):
    for client in cohorts.cohort(config, participating, rows, round_num):
      num_rounds[client.client_id] = 1 + num_rounds.get(client.client_id, 0)
  found, epsilons = _accounts(whole), []
  assert len(found) == len(num_rounds)
  for client_id, count in num_rounds.items():
    n = len(rows.sequences(client_id))
    # Two epochs of at most 6 rows in batches of 2.
    num_steps = count * 2 * (min(n, 6) // 2)
    epsilons.append(privacy.epsilon(min(1, 2 / n), 1.0, num_steps, 1e-5))
    row = found[client_id.decode()]
    assert row['num_examples'] == str(n)
    assert row['num_rounds'] == str(count)
    assert row['num_steps'] == str(num_steps)
    assert float(row['epsilon']) == epsilons[-1]
  rounds = tables.read_metrics(whole / 'metrics.csv')
  assert rounds[-1]['privacy/epsilon_max'] == max(epsilons)
  assert rounds[-1]['privacy/epsilon_mean'] == pytest.approx(np.mean(epsilons))
  largest = [row['privacy/epsilon_max'] for row in rounds]
  assert largest == sorted(largest) and largest[0] == 0 < largest[1]


def test_a_last_smaller_batch_is_dropped_and_counted(small_inputs, tmp_path):
  settings = _SETTINGS | {
    'client_work__local_batch_size': 4,
    'training__num_rounds': 2,
    'local_privacy__noise_multiplier': 0.0,
  }
  run = tmp_path / 'run'
  assert small_runs.train(small_inputs, run, **settings) == 0
  config, participating, rows = _opened(small_inputs, **settings)
  rounds = tables.read_metrics(run / 'metrics.csv')[1:]
  for round_num, row in enumerate(rounds, 1):
    cohort = cohorts.cohort(config, participating, rows, round_num)
    counts = [len(rows.sequences(client.client_id)) for client in cohort]
    kept = [min(n, 6) // 4 * 4 for n in counts]
    assert row['train/num_sequences'] == 2 * sum(kept)
    assert row['train/num_dropped_sequences'] == sum(counts) - sum(kept)
  # Without noise there is no epsilon.
  assert not (run / 'privacy.csv').exists()
  assert 'privacy/epsilon_mean' not in rounds[0]


@pytest.mark.parametrize(
  'settings',
  [
    # Moon has an extra loss, too, and stays.
    pytest.param(
      {'algorithm__name': 'fed_prox', 'algorithm__mu': 0.1},
      marks=pytest.mark.slow,
    ),
    {'algorithm__name': 'moon'},
    {
      'algorithm__name': 'scaffold',
      'client_work__num_local_epochs': 1,
      'client_work__num_local_steps': 3,
      'client_work__max_sequences_per_client': None,
      'local_privacy__sampling': 'poisson',
      'server__optimizer': 'sgd',
      'server__learning_rate': 1.0,
    },
    {
      'algorithm__name': 'fed_fish',
      'algorithm__fisher_estimator': 'last_epoch',
      'local_privacy__sampling': 'poisson',
    },
    # tests/rounds/test_local_privacy.py stays: what a client sends.
    pytest.param(
      {'algorithm__name': 'fed_sgd', 'client_work__num_local_epochs': 1},
      marks=pytest.mark.slow,
    ),
  ],
  ids=lambda settings: settings['algorithm__name'],
)
def test_every_method_trains(settings, small_inputs, tmp_path):
  run = tmp_path / 'run'
  settings = _SETTINGS | {'training__num_rounds': 1} | settings
  assert small_runs.train(small_inputs, run, **settings) == 0
  row = tables.read_metrics(run / 'metrics.csv')[1]
  assert row['train/num_non_finite_clients'] == 0
  assert row['privacy/epsilon_max'] > 0
  assert row['train/update_is_all_zero'] == 0


@pytest.mark.parametrize(
  # FedFomo keeps a model, too, and validation rows beside it.
  'name',
  [pytest.param('local_only', marks=pytest.mark.slow), 'fed_fomo'],
)
def test_clients_with_models_of_their_own(name, small_inputs, tmp_path):
  run = tmp_path / 'run'
  settings = _SETTINGS | {
    'algorithm__name': name,
    'cohorts__cohort_size': None,
    'local_privacy__sampling': 'poisson',
    'training__num_rounds': 2,
  }
  assert small_runs.train(small_inputs, run, **settings) == 0
  row = tables.read_metrics(run / 'metrics.csv')[-1]
  assert row['train/num_non_finite_clients'] == 0
  config, participating, rows = _opened(small_inputs, **settings)
  found = _accounts(run)
  assert len(found) == len(participating)
  for client_id in participating:
    # Validation and test rows are no part of what is sampled.
    expected = str(rows.num_training_rows(client_id))
    assert found[client_id.decode()]['num_examples'] == expected


def test_the_barrier_trains_clients_with_the_same_noise(
  small_inputs, tmp_path, monkeypatch
):
  trained, measure = [], barrier.measure_clients
  monkeypatch.setattr(
    barrier,
    'measure_clients',
    functools.partial(measure, on_client_trained=trained.append),
  )
  run = tmp_path / 'run'
  settings = _SETTINGS | {
    'training__num_rounds': 1,
    'evaluation__barrier_every_num_rounds': 1,
    'local_privacy__sampling': 'poisson',
    'server__optimizer': 'sgd',
    'server__learning_rate': 1.0,
  }
  assert small_runs.train(small_inputs, run, **settings) == 0
  row = tables.read_metrics(run / 'metrics.csv')[1]
  assert row['barrier/num_failed_clients'] == 0
  # The round's step is the mean of the replayed deltas.
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


# tests/runtime/test_ray_workers.py stays: workers give one process's bits.
@pytest.mark.slow
def test_ray_draws_the_same(small_inputs, tmp_path):
  settings = _SETTINGS | {
    'training__num_rounds': 1,
    'local_privacy__sampling': 'poisson',
    'engine__num_partial_sums': 2,
  }
  here, there = tmp_path / 'here', tmp_path / 'there'
  assert small_runs.train(small_inputs, here, **settings) == 0
  settings |= {'engine__kind': 'ray', 'engine__num_workers': 2}
  assert small_runs.train(small_inputs, there, **settings) == 0
  expected = _weights(here)
  for name, tensor in _weights(there).items():
    np.testing.assert_allclose(tensor, expected[name], atol=1e-6)
  assert (here / 'privacy.csv').read_bytes() == (
    there / 'privacy.csv'
  ).read_bytes()
