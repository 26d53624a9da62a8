"""Runs that keep their best round, stop early, or have validation clients."""

import csv
import json
import math
import shutil

import personal_runs
import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import checkpoints, run_directory, tables
from tff_fedfish.run.row_source import row_source
from tff_fedfish.sweeping.runs import Run

# A rate at which losses go up and down.
_SETTINGS = dict(
  server__learning_rate=0.5,
  server__epsilon=1e-7,
  training__num_rounds=12,
  evaluation__every_num_rounds=1,
  evaluation__num_clients=20,
  checkpoints__every_num_rounds=5,
  checkpoints__keep_last=1,
  checkpoints__keep_best=True,
  client_splits__held_out_fraction=0.5,
)
_VALIDATION = dict(client_splits__validation_clients_fraction=0.5)


@pytest.fixture(scope='module')
def inputs(tmp_path_factory):
  directory = tmp_path_factory.mktemp('best')
  corpus = small_runs.make_corpus(directory, 24)
  return corpus, small_runs.make_vocabulary(directory, corpus)


@pytest.fixture(scope='module')
def whole_run(inputs, tmp_path_factory):
  """Uninterrupted, with validation clients; not to be changed."""
  run = tmp_path_factory.mktemp('whole') / 'run'
  assert small_runs.train(inputs, run, **_SETTINGS, **_VALIDATION) == 0
  return run


@pytest.fixture(scope='module')
def best(whole_run):
  losses = _column(whole_run, 'validation/loss')
  best = losses.index(min(losses))
  # Neither a regular round nor the last one.
  assert best % 5 and best < 12
  return best


def _rows(run):
  return tables.read_metrics(run / 'metrics.csv')


def _column(run, name):
  return [row[name] for row in _rows(run)]


def _saved(run):
  return {
    r: (path / 'state.safetensors').read_bytes()
    for r in checkpoints.list_rounds(run / 'checkpoints')
    for path in [checkpoints.path_of(run / 'checkpoints', r)]
  }


def _evaluate(checkpoint, corpus, *options):
  """Returns the summary, and the ids in per_client.csv."""
  output = corpus.parent / 'evaluation'
  shutil.rmtree(output, ignore_errors=True)
  arguments = ['--checkpoint', str(checkpoint), '--data', str(corpus)]
  arguments += ['--output', str(output), '--fractions', '0', *options]
  assert main(['evaluate', *arguments]) == 0
  with open(output / 'per_client.csv', newline='') as file:
    clients = {row['client_id'] for row in csv.DictReader(file)}
  return json.loads((output / 'summary.json').read_text()), clients


def test_best_round_is_kept_beside_the_last(whole_run, best):
  assert sorted(_saved(whole_run)) == [0, best, 12]


@pytest.mark.parametrize('is_saved', [True, False])
def test_a_resumed_run_has_the_same_best(
  is_saved, inputs, whole_run, best, tmp_path
):
  """Interrupted at the best round, and before its checkpoint is written."""
  settings = _SETTINGS | _VALIDATION | dict(checkpoints__keep_last=0)
  settings |= dict(training__num_rounds=best)
  assert small_runs.train(inputs, tmp_path, **settings) == 0
  if not is_saved:
    path = checkpoints.path_of(tmp_path / 'checkpoints', best)
    shutil.rmtree(path)
  settings = _SETTINGS | _VALIDATION
  assert small_runs.train(inputs, tmp_path, **settings) == 0
  name = 'metrics.csv'
  assert (tmp_path / name).read_bytes() == (whole_run / name).read_bytes()
  assert _saved(tmp_path) == _saved(whole_run)


def test_patience_ends_a_run_until_it_is_raised(
  inputs, whole_run, tmp_path, capsys
):
  losses = _column(whole_run, 'validation/loss')
  patience, waited, stop = 2, 0, 0
  while waited < patience:
    stop += 1
    waited = waited + 1 if losses[stop] >= min(losses[:stop]) else 0
  assert stop < 12
  settings = _SETTINGS | _VALIDATION | dict(training__patience=patience)
  for _ in range(2):
    assert small_runs.train(inputs, tmp_path, **settings) == 0
    out, err = capsys.readouterr()
    assert f'Stopped early: round {stop} of 12, 2 evaluations' in out + err
    assert _column(tmp_path, 'round') == list(range(stop + 1))
    assert max(_saved(tmp_path)) == stop
    config = run_directory.read_config(tmp_path)
    values = dict(directory=tmp_path, config=config, evaluations={}, point={})
    assert Run(name='of_a_sweep', **values).is_done()
  assert f"The run in '{tmp_path}' is finished." in err
  assert 'Continuing' not in err
  settings |= dict(training__patience=None)
  assert small_runs.train(inputs, tmp_path, **settings) == 0
  assert 'Stopped early' not in capsys.readouterr().out
  name = 'metrics.csv'
  assert (tmp_path / name).read_bytes() == (whole_run / name).read_bytes()
  assert _saved(tmp_path) == _saved(whole_run)


def test_validation_clients_are_held_out_clients_that_nobody_scores(
  inputs, whole_run, best, capsys
):
  corpus = inputs[0]
  source = row_source(run_directory.read_config(whole_run))
  split = source.split(source.open(corpus))
  sides = split.participating, split.held_out, split.validation
  assert all(sides)
  assert sorted(sum(map(list, sides), [])) == [*source.open(corpus).client_ids]
  validation = {client_id.decode() for client_id in split.validation}
  for part in ('held_out', 'participating'):
    options = '--max_clients=all', f'--client_split={part}'
    summary, clients = _evaluate(f'{whole_run}@best', corpus, *options)
    assert summary['checkpoint'] == {
      'round': best,
      'best_of_rounds': 13,
      'chosen_on': 'validation_clients',
    }
    assert clients and not clients & validation
  assert 'was chosen on' not in capsys.readouterr().err


def test_without_validation_clients_the_choice_is_named(
  inputs, whole_run, tmp_path, capsys
):
  corpus, settings = inputs[0], _SETTINGS
  assert small_runs.train(inputs, tmp_path, **settings) == 0
  losses = _column(tmp_path, 'held_out/loss')
  best = losses.index(min(losses))
  # Clients that choose change nothing else.
  assert _saved(tmp_path)[12] == _saved(whole_run)[12]
  # The mean over all held-out clients is that over both kinds of them.
  n, m = (
    _column(run, 'held_out/num_clients')[0] for run in (tmp_path, whole_run)
  )
  assert 0 < m < n
  for loss, row in zip(losses, _rows(whole_run), strict=True):
    held_out, validation = row['held_out/loss'], row['validation/loss']
    assert math.isclose(n * loss, m * held_out + (n - m) * validation)
  capsys.readouterr()
  summary, _ = _evaluate(f'{tmp_path}@best', corpus)
  assert summary['checkpoint'] == {
    'round': best,
    'best_of_rounds': 13,
    'chosen_on': 'held_out_clients',
  }
  line = (
    f'fedfish: note: round {best} was chosen on the clients that are scored, '
    'as the best of 13 evaluated rounds.'
  )
  assert line in capsys.readouterr().err.splitlines()
  # By its path it is no choice, nor are other clients those that chose it.
  path = checkpoints.path_of(tmp_path / 'checkpoints', best)
  summary, _ = _evaluate(path, corpus)
  assert summary['checkpoint'] == {'round': best}
  _evaluate(f'{tmp_path}@best', corpus, '--client_split=participating')
  assert 'was chosen on' not in capsys.readouterr().err


def test_export_and_generate_take_the_best(whole_run, best, tmp_path, capsys):
  named = ['--checkpoint', f'{whole_run}@best']
  output = ['--output', str(tmp_path / 'out'), '--format', 'safetensors']
  assert main(['export', *named, *output]) == 0
  assert f'Round {best}, ' in capsys.readouterr().out
  assert main(['generate', *named, '--prompt', 'the', '--num_tokens', '2']) == 0


def test_personal_models_of_the_best_round(small_mnist, tmp_path, capsys):
  """Their client states are kept, too, where clients have trained since."""
  settings = dict(
    client_splits__shuffles_targets=True,
    checkpoints__keep_last=2,
    checkpoints__keep_best=True,
    training__num_rounds=5,
  )
  assert personal_runs.train(small_mnist, tmp_path, **settings) == 0
  losses = _column(tmp_path, 'personal/loss')
  best = losses.index(min(losses))
  assert 0 < best < 4
  assert sorted(_saved(tmp_path)) == [0, best, 4, 5]
  summary, _ = _evaluate(f'{tmp_path}@best', small_mnist)
  clients = read_evaluation(small_mnist.parent / 'evaluation').clients
  assert summary['checkpoint'] == {
    'round': best,
    'best_of_rounds': 6,
    'chosen_on': 'own_test_rows',
  }
  assert clients['loss_after'].mean() == pytest.approx(losses[best])
  assert f'round {best} was chosen on' in capsys.readouterr().err
