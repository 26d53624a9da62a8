"""`fedfish train` with TCT on text: the full linearisation."""

import csv

import numpy as np
import pytest
import small_runs
from stateful_runs import assert_same_run

from tff_fedfish.cli.main import main
from tff_fedfish.run import checkpoints

# Rounds 1 and 2 are FedAvg, 3 to 5 convex.
_SETTINGS = dict(
  algorithm__name='tct',
  algorithm__client_weighting='uniform',
  algorithm__num_bootstrap_rounds=2,
  algorithm__convex_learning_rate=0.3,
  client_work__num_local_epochs=1,
  client_work__max_sequences_per_client=None,
  client_work__num_local_steps=4,
  client_work__local_batch_size=4,
  client_work__learning_rate=0.3,
  cohorts__cohort_size=None,
  server__optimizer='sgd',
  server__learning_rate=1.0,
  training__num_rounds=5,
  evaluation__every_num_rounds=1,
)


def _train(inputs, workdir, **settings):
  return small_runs.train(inputs, workdir, **_SETTINGS | settings)


def _rows(run):
  with open(run / 'metrics.csv', newline='') as file:
    return list(csv.DictReader(file))


def _tensors(run, round_num):
  path = checkpoints.path_of(run / 'checkpoints', round_num)
  return checkpoints.load_checkpoint(path, 'global_model_weights/').tensors


@pytest.fixture(scope='module')
def whole(small_inputs, tmp_path_factory):
  run = tmp_path_factory.mktemp('tct_text') / 'whole'
  assert _train(small_inputs, run) == 0
  return run


def test_phases_and_losses(whole):
  rows = _rows(whole)
  assert [row['tct/phase'] for row in rows] == ['', *'11222']
  losses = [float(row['held_out/loss']) for row in rows]
  assert losses == sorted(losses, reverse=True)
  # Every round takes other rows, so that its own loss need not fall.
  assert float(rows[5]['train/loss']) < float(rows[2]['train/loss'])
  assert all(float(row['train/accuracy']) > 0 for row in rows[1:])
  for row in rows[4:]:
    assert float(row['tct/correction_imbalance']) < 1e-5
  assert [row['communication/uplink_units'] for row in rows] == list('012345')


def test_the_network_stays_as_it_was(whole):
  before, after = _tensors(whole, 2), _tensors(whole, 5)
  prefix = 'global_model_weights/'
  for index in range(len(before)):
    fixed = after[f'{prefix}non_trainable/{index}']
    bootstrap = before[f'{prefix}trainable/{index}']
    np.testing.assert_array_equal(fixed, bootstrap)
    assert np.abs(after[f'{prefix}trainable/{index}']).max() > 0


@pytest.mark.parametrize('num_rounds', [1, 2, 4])
def test_resumed(num_rounds, small_inputs, whole, tmp_path):
  run = tmp_path / 'run'
  assert _train(small_inputs, run, training__num_rounds=num_rounds) == 0
  assert _train(small_inputs, run) == 0
  assert_same_run(run, whole)


def test_only_the_last_blocks(small_inputs, tmp_path):
  run = tmp_path / 'run'
  settings = dict(algorithm__mask_layers=1, algorithm__num_bootstrap_rounds=0)
  settings |= dict(training__num_rounds=1)
  assert _train(small_inputs, run, **settings) == 0
  assert _rows(run)[1]['tct/phase'] == '2'
  # The first tensor is the token embedding, which is of no block.
  found = _tensors(run, 1)['global_model_weights/trainable/0']
  np.testing.assert_array_equal(found, 0)


def test_evaluated_but_not_exported(small_inputs, whole, tmp_path, capsys):
  corpus, _ = small_inputs
  options = ['--checkpoint', str(whole), '--output', str(tmp_path / 'output')]
  sequences = ['--split_unit', 'sequences']
  assert main(['evaluate', *options, '--data', str(corpus), *sequences]) == 0
  options[-1] = str(tmp_path / 'model')
  assert main(['export', *options]) == 2
  words = "that phase 'convex' of 'tct' made linear in its weights"
  assert words in capsys.readouterr().err
  options[1] = str(checkpoints.path_of(whole / 'checkpoints', 2))
  assert main(['export', *options]) == 0


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    (
      {'client_work__num_local_steps': None},
      '`config.client_work.num_local_steps` is required with a corpus of text',
    ),
    (
      {'algorithm__client_weighting': 'num_examples'},
      "`config.algorithm.client_weighting` must be 'uniform' with a corpus of",
    ),
    (
      {'algorithm__solver': 'steps'},
      '`config.algorithm.solver` must be left out with a corpus of text',
    ),
    (
      {'algorithm__mask_layers': 2},
      '`config.algorithm.mask_layers` must be at most the 1 blocks of the',
    ),
  ],
)
def test_refused_settings(settings, words, small_inputs, tmp_path, capsys):
  assert _train(small_inputs, tmp_path / 'run', **settings) == 2
  assert words in capsys.readouterr().err


def test_planned(small_inputs, capsys):
  options = small_runs.overrides(*small_inputs, **_SETTINGS)
  config = ['--config', small_runs.CONFIG]
  assert main(['plan', *config, *options, '--no_timing']) == 0
  text = ' '.join(capsys.readouterr().out.split())
  assert "Phase 'convex', rounds 3 to 5: 1 models up and 1 down" in text
  assert 'Client states on disk: ' in text


# `test_phases_and_losses` stays: corrections of several clients.
@pytest.mark.slow
def test_one_client(small_inputs, tmp_path):
  # Its corrections are rounding only, which must not end the run.
  run = tmp_path / 'run'
  settings = dict(partition__scheme='merge', partition__num_clients=1)
  assert _train(small_inputs, run, **settings) == 0
  for row in _rows(run)[4:]:
    assert float(row['tct/correction_imbalance']) < 1e-4
