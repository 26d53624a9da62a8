"""Personal models on text, and clients with few rows."""

import csv
import types

import numpy as np
import pytest
import small_runs
from stateful_runs import live_states

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.evaluation.evaluator import build_evaluator
from tff_fedfish.evaluation.own_tests import OwnTests
from tff_fedfish.run import build, client_data, cohorts, run_directory, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

_SETTINGS = dict(
  cohorts__cohort_size=None,
  client_work__num_local_epochs=1,
  client_work__learning_rate=0.1,
  training__num_rounds=2,
  evaluation__every_num_rounds=1,
  checkpoints__every_num_rounds=0,
)
_FOMO = dict(algorithm__name='fed_fomo', algorithm__num_downloads=2)
# Of two rows one is for testing and the other for training.
_FEW_ROWS = dict(
  data__sequence_length=64,
  client_splits__test_fraction=0.5,
  client_splits__held_out_fraction=0.0,
  evaluation__num_clients=12,
)


def _train(inputs, run, **settings):
  """Returns the rows of metrics.csv."""
  assert small_runs.train(inputs, run, **_SETTINGS | settings) == 0
  return tables.read_metrics(run / 'metrics.csv')


def _losses(inputs, run):
  """Evaluates a run; returns client id -> loss of its personal model."""
  output = run / 'out'
  arguments = ['--checkpoint', str(run), '--data', str(inputs[0])]
  assert main(['evaluate', *arguments, '--output', str(output)]) == 0
  with open(output / 'per_client.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert {row['model'] for row in rows} == {'personal'}
  return {row['client_id'].encode(): float(row['loss_after']) for row in rows}


@pytest.mark.slow
def test_merged_clients(small_tokens, tmp_path):
  run = tmp_path / 'run'
  rows = _train(
    small_tokens,
    run,
    partition__scheme='merge',
    partition__num_clients=3,
    **_FOMO,
  )
  assert run_directory.read_config(run).row_fractions == (0.2, 0.2)
  assert 'held_out/loss' not in rows[0]
  losses = [row['personal/loss'] for row in rows]
  assert np.all(np.isfinite(losses)) and losses[2] < losses[0]
  assert len(live_states(run)) == 3
  # In round 2 all of three clients were sent both others' models.
  assert [row['train/num_downloads'] for row in rows[1:]] == [0, 6]


@pytest.mark.slow
def test_clients_without_validation_rows(small_inputs, tmp_path):
  fomo, local = tmp_path / 'fomo', tmp_path / 'local'
  rows = _train(small_inputs, fomo, **_FEW_ROWS | _FOMO)
  _train(small_inputs, local, **_FEW_ROWS, algorithm__name='local_only')
  assert run_directory.read_config(local).row_fractions == (0.0, 0.5)
  assert rows[1]['train/num_clients'] == 12
  assert rows[1]['train/num_failed_clients_data'] == 0
  assert len(live_states(fomo)) == 12
  config = run_directory.read_config(fomo)
  corpus = client_data.open_corpus(config, small_inputs[0])
  tokenizer = client_data.open_tokenizer(config, small_inputs[1])
  divided = row_source(config).with_test_rows(
    corpus, row_source(config).training_rows(corpus, tokenizer)
  )
  without = {
    client
    for client in live_states(fomo)
    if not len(divided.validation_sequences(client))
  }
  assert 0 < len(without) < 12
  # All rows but those for tests are trained on by either method.
  found, wanted = (_losses(small_inputs, run) for run in (fomo, local))
  assert found.keys() == wanted.keys()
  assert found.keys() & without
  for client in found.keys() & without:
    assert found[client] == pytest.approx(wanted[client], rel=1e-5)


def test_inputs_and_scores_without_training(small_inputs):
  config = config_loading.load_config(
    small_runs.CONFIG,
    small_runs.overrides(*small_inputs, **_SETTINGS | _FEW_ROWS | _FOMO),
  )
  inputs = check.check_run(config)
  rows = row_source(config).training_rows(inputs.corpus, inputs.tokenizer)
  model = build.build_model(config)
  num_validated = []
  for client in cohorts.cohort(config, inputs.corpus.client_ids, rows, 1):
    data = client.load().data
    for batches in data.values():
      for name, spec in model.functional_model.input_spec.items():
        assert spec.is_compatible_with(batches.element_spec[name])
    num_validated.append(sum(len(b['y']) for b in data['validation']))
    assert sum(len(b['y']) for b in data['data']) > 0
  assert len(num_validated) == 12
  assert 0 in num_validated and any(num_validated)
  # The clients' models are those that are drawn.
  weights, _ = model.draw_initial_weights()
  kept = types.SimpleNamespace(
    config=config,
    inputs_of=lambda client_id, round_num: {},
    process=types.SimpleNamespace(
      personal_models=lambda state, clients: [weights] * len(clients)
    ),
  )
  tests = OwnTests(
    evaluator=build_evaluator(config),
    client_rows=rows,
    kept=kept,
    round_num=1,
  )
  found = tests.mean_score(inputs.corpus.client_ids, None, lambda: False)
  num_rows = [len(rows.test_sequences(c)) for c in inputs.corpus.client_ids]
  assert found['personal/num_clients'] == np.count_nonzero(num_rows)
  # Nearly uniform over 256 pieces.
  assert found['personal/loss'] == pytest.approx(np.log(256), rel=0.02)


@pytest.mark.slow
def test_no_test_rows(small_inputs, small_run, tmp_path, capsys):
  # `small_run` keeps no rows for tests, and must not be written into.
  arguments = ['evaluate', '--checkpoint', str(small_run)]
  arguments += ['--data', str(small_inputs[0]), '--client_split', 'own_test']
  assert main([*arguments, '--output', str(tmp_path / 'out')]) == 2
  assert capsys.readouterr().err.splitlines()[-1] == (
    "fedfish: error: `--client_split` 'own_test' requires clients with test "
    'rows, but the run has none. Train with '
    '`--config.client_splits.test_fraction` above 0.'
  )
