"""Models of clients' own on text, and clients with too few rows for them."""

import csv

import numpy as np
import pytest
import small_runs
from stateful_runs import live_states

from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.run import client_data, run_directory, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.training import check

_SETTINGS = dict(
  client_work__num_local_epochs=1,
  client_work__learning_rate=0.1,
  training__num_rounds=2,
  evaluation__every_num_rounds=1,
  checkpoints__every_num_rounds=0,
)
_FOMO = dict(algorithm__name='fed_fomo', algorithm__num_downloads=2)
_MERGE = dict(
  partition__scheme='merge',
  partition__num_clients=3,
  cohorts__cohort_size=None,
)


def _train(inputs, run, **settings):
  """Returns the rows of metrics.csv."""
  assert small_runs.train(inputs, run, **_SETTINGS | settings) == 0
  return tables.read_metrics(run / 'metrics.csv')


def _evaluate(inputs, run, *options):
  arguments = ['evaluate', '--checkpoint', str(run), '--data', str(inputs[0])]
  output = run / 'out'
  code = main([*arguments, '--output', str(output), *options])
  if code:
    return code
  with open(output / 'per_client.csv', newline='') as file:
    return list(csv.DictReader(file))


@pytest.mark.parametrize(
  'settings',
  [
    dict(algorithm__name='local_only'),
    dict(algorithm__name='local_only') | _MERGE,
    _FOMO,
    _FOMO | _MERGE,
  ],
  ids=['local_only', 'local_only-merged', 'fed_fomo', 'fed_fomo-merged'],
)
def test_two_rounds(settings, small_tokens, tmp_path):
  run = tmp_path / 'run'
  rows = _train(small_tokens, run, **settings)
  config = run_directory.read_config(run)
  sends = config.algorithm.name == 'fed_fomo'
  assert config.row_fractions == (0.2 if sends else 0.0, 0.2)
  assert 'held_out/loss' not in rows[0]
  losses = [row['personal/loss'] for row in rows]
  assert np.all(np.isfinite(losses))
  if 'partition__scheme' in settings or not sends:
    # Else most clients have hardly trained, or went back to the initial model.
    assert losses[2] < losses[0]
  assert len(live_states(run)) >= 3
  if 'partition__scheme' in settings and sends:
    # In round 2 all of three clients were sent both others' models.
    assert [row['train/num_downloads'] for row in rows[1:]] == [0, 6]


def test_own_tests_of_a_global_model(small_inputs, tmp_path, capsys):
  settings = dict(client_splits__test_fraction=0.2, evaluation__num_clients=0)
  run = tmp_path / 'run'
  _train(small_inputs, run, **settings)
  found = _evaluate(small_inputs, run, '--client_split', 'own_test')
  local = tmp_path / 'local'
  _train(small_inputs, local, algorithm__name='local_only')
  expected = _evaluate(small_inputs, local)
  assert {row['model'] for row in found} == {'global'}
  assert {row['model'] for row in expected} == {'personal'}
  # The same rows of the same clients.
  names = ('client_id', 'num_evaluation_sequences', 'num_evaluation_tokens')
  assert [[row[n] for n in names] for row in found] == [
    [row[n] for n in names] for row in expected
  ]


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


class TestClientsWithoutValidationRows:
  # Of two rows one is for testing and the other for training.
  _SETTINGS = _FOMO | dict(
    data__sequence_length=64,
    client_splits__test_fraction=0.5,
    client_splits__held_out_fraction=0.0,
    cohorts__cohort_size=None,
    evaluation__num_clients=12,
  )

  def test_train_their_own_models(self, small_inputs, tmp_path):
    fomo, local = tmp_path / 'fomo', tmp_path / 'local'
    rows = _train(small_inputs, fomo, **self._SETTINGS)
    settings = self._SETTINGS | dict(algorithm__name='local_only')
    del settings['algorithm__num_downloads']
    _train(small_inputs, local, **settings)
    assert rows[1]['train/num_clients'] == 12
    assert rows[1]['train/num_failed_clients_data'] == 0
    assert len(live_states(fomo)) == 12
    config = run_directory.read_config(fomo)
    corpus = client_data.open_corpus(config, small_inputs[0])
    tokenizer = client_data.open_tokenizer(config, small_inputs[1])
    divided = row_source(config).with_test_rows(
      corpus, row_source(config).training_rows(corpus, tokenizer)
    )
    without = [
      client
      for client in live_states(fomo)
      if not len(divided.validation_sequences(client))
    ]
    assert 0 < len(without) < 12
    # All rows but those for tests are trained on by either method.
    found, wanted = (
      {
        row['client_id'].encode(): float(row['loss_after'])
        for row in _evaluate(small_inputs, run)
      }
      for run in (fomo, local)
    )
    assert found.keys() == wanted.keys()
    assert found.keys() & set(without)
    for client in found.keys() & set(without):
      assert found[client] == pytest.approx(wanted[client], rel=1e-5)


class TestChecks:
  @staticmethod
  def _config(inputs, **settings):
    return config_loading.load_config(
      small_runs.CONFIG, small_runs.overrides(*inputs, **settings)
    )

  def test_a_sweep_also_checks_what_methods_send(self, small_inputs):
    # All that differs is the method.
    configs = [
      self._config(small_inputs, **settings)
      for settings in (
        dict(algorithm__name='fed_avg'),
        dict(algorithm__name='fed_fomo', algorithm__num_downloads=50),
      )
    ]
    (problem,) = check.problems_of(configs)
    assert problem.startswith('`--config.algorithm.num_downloads` is 50, but ')

  def test_a_sweep_also_checks_methods_of_ones_own(
    self, small_inputs, tmp_path, monkeypatch
  ):
    package = tmp_path / 'swept_methods'
    package.mkdir()
    (package / 'unbuilt.py').write_text(
      'from tff_fedfish.methods.method import Method, Traffic\n'
      'from tff_fedfish.methods.settings import AlgorithmConfig\n'
      "METHOD = Method(name='unbuilt', title='Unbuilt', summary='None.', "
      "source='none', settings=AlgorithmConfig, "
      "builder='swept_methods.unbuilt:build_it', "
      'traffic=lambda config: Traffic())\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    # All that differs is the method.
    (problem,) = check.problems_of(
      self._config(small_inputs, algorithm__name=name)
      for name in ('fed_avg', 'swept_methods.unbuilt')
    )
    assert "'swept_methods.unbuilt:build_it'" in problem
    # All that differs is DP-SGD, of which this builder does not know.
    (package / 'unbuilt.py').write_text(
      (package / 'unbuilt.py').read_text().replace('unbuilt', 'public')
      + 'def build_it(model, *, client_optimizer, server_optimizer, '
      'num_local_epochs, client_weighting): ...\n'
    )
    (package / 'unbuilt.py').rename(package / 'public.py')
    (problem,) = check.problems_of(
      self._config(
        small_inputs,
        algorithm__name='swept_methods.public',
        local_privacy__clip_norm=norm,
      )
      for norm in (0.0, 1.0)
    )
    assert 'local_privacy' in problem

  def test_held_out_clients_may_be_too_small_to_score(self, small_inputs):
    settings = dict(data__sequence_length=2000)
    (problem,) = check.problems_of(
      [self._config(small_inputs, algorithm__name='fed_avg', **settings)]
    )
    assert 'has the 4 sequences that an evaluation needs' in problem
    # These are not scored.
    assert not check.problems_of(
      [self._config(small_inputs, algorithm__name='local_only', **settings)]
    )
