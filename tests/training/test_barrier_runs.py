"""Runs that measure the barrier, beside `fedfish evaluate` and each other."""

import signal

import personal_runs
import pytest
from stateful_runs import assert_same_run

from tff_fedfish.cli.main import main
from tff_fedfish.evaluation import barrier, evaluator, statistics
from tff_fedfish.evaluation.results import read_evaluation
from tff_fedfish.run import checkpoints, cohorts, tables

# Rounds 2 and 3 are measured: the multiple and the last. Of cohorts of 3.
_SETTINGS = dict(
  algorithm__name='fed_avg',
  client_work__learning_rate=0.01,
  cohorts__cohort_size=3,
  evaluation__every_num_rounds=2,
  training__num_rounds=3,
  evaluation__barrier_every_num_rounds=2,
  engine__num_partial_sums=2,
)


def _rows(run):
  return tables.read_metrics(run / 'metrics.csv')


def _assert_equals_the_evaluation(run, round_num, corpus, output):
  """Compares a row with the barrier of the checkpoint before its round."""
  before = run / 'checkpoints' / f'round_{round_num - 1:08d}'
  arguments = ['--checkpoint', str(before), '--data', str(corpus)]
  arguments += ['--output', str(output), '--barrier', '--fractions', '0']
  assert main(['evaluate', *arguments, '--max_clients', '1']) == 0
  found = statistics.barrier_scores(read_evaluation(output).barriers)
  row = _rows(run)[round_num]
  assert row['barrier/loss'] == found.loss.mean > 0
  assert row['barrier/error'] == found.error.mean
  assert row['barrier/num_clients'] == found.num_clients
  assert row['barrier/num_non_finite_clients'] == 0
  assert row['barrier/num_failed_clients'] == 0


@pytest.fixture(scope='module')
def run(small_mnist, tmp_path_factory):
  """A finished run, not interrupted. Tests must not change it."""
  workdir = tmp_path_factory.mktemp('barrier_rounds') / 'finished'
  assert personal_runs.train(small_mnist, workdir, **_SETTINGS) == 0
  return workdir


@pytest.mark.slow
def test_equals_the_evaluation_of_the_checkpoint_before(
  small_mnist, run, tmp_path
):
  _assert_equals_the_evaluation(run, 2, small_mnist, tmp_path / 'found')
  for row in _rows(run):
    cells = [row[name] for name in row if name.startswith('barrier/')]
    assert len(cells) == 5
    assert [cell is None for cell in cells] == [row['round'] < 2] * 5
  timings = tables.read_metrics(run / 'timings.csv')
  measured = [row['barrier_seconds'] is not None for row in timings]
  assert measured == [False, False, True, True]


@pytest.mark.slow
def test_rate_and_state_of_the_method_are_those_of_the_round(
  small_mnist, tmp_path
):
  run = tmp_path / 'run'
  settings = dict(
    algorithm__name='fed_prox',
    algorithm__mu=0.5,
    algorithm__adaptation='fl4health',
    client_work__learning_rate_schedule='cosine',
    client_work__schedule_rounds=2,
    client_work__final_fraction=0.1,
    training__num_rounds=2,
    evaluation__barrier_every_num_rounds=1,
  )
  assert personal_runs.train(small_mnist, run, **settings) == 0
  _assert_equals_the_evaluation(run, 2, small_mnist, tmp_path / 'found')
  _, first, second = (row['barrier/loss'] for row in _rows(run))
  # Rates of 0.55 and 0.1: clients train less far away.
  assert second < 0.5 * first


@pytest.mark.parametrize(
  ('module', 'name', 'call'),
  # Round 0 is scored as well.
  [(barrier, '_train', 1), (evaluator, 'mean_score', 2)],
  ids=['measurement', 'held_out'],
)
def test_interrupted_round_leaves_no_trace(
  small_mnist, run, tmp_path, monkeypatch, module, name, call
):
  called = getattr(module, name)
  num_calls = 0

  def interrupt(*arguments, **options):
    nonlocal num_calls
    num_calls += 1
    if num_calls == call:
      signal.raise_signal(signal.SIGTERM)
    return called(*arguments, **options)

  workdir = tmp_path / 'run'
  with monkeypatch.context() as patch:
    patch.setattr(module, name, interrupt)
    code = personal_runs.train(small_mnist, workdir, **_SETTINGS)
  assert code == 128 + signal.SIGTERM
  # It ended with the client in hand.
  assert num_calls == call
  assert [row['round'] for row in _rows(workdir)] == [0, 1]
  assert checkpoints.list_rounds(workdir / 'checkpoints') == [0, 1]
  assert personal_runs.train(small_mnist, workdir, **_SETTINGS) == 0
  assert_same_run(workdir, run)


def test_clients_that_fail_are_left_out(
  small_mnist, run, tmp_path, monkeypatch, capsys
):
  train, load = barrier._train, cohorts.TrainingClient.load
  measured, failed = [], set()

  def fail_first(process, state, client):
    measured.append(client)
    if len(measured) == 1:
      raise OSError('no such block')
    return train(process, state, client)

  def fail_in_round_3(client):
    if client.round_num == 3 and (not failed or client.client_id in failed):
      failed.add(client.client_id)
      raise OSError('no such block')
    return load(client)

  monkeypatch.setattr(barrier, '_train', fail_first)
  monkeypatch.setattr(cohorts.TrainingClient, 'load', fail_in_round_3)
  workdir = tmp_path / 'run'
  assert personal_runs.train(small_mnist, workdir, **_SETTINGS) == 0
  assert (
    f'Round 2: client {measured[0].client_id!r} was left out of the barrier, '
    'OSError: no such block\n'
  ) in capsys.readouterr().err
  names = ('train/num_failed_clients_data', 'barrier/num_failed_clients')
  names += ('barrier/num_clients',)
  expected = [[0, 1, 2], [1, 0, 2]]
  rows = _rows(workdir)
  assert [[row[name] for name in names] for row in rows[2:]] == expected
  assert failed.isdisjoint(c.client_id for c in measured if c.round_num == 3)
  # The training does not notice what happens while it is measured.
  assert rows[2]['held_out/loss'] == _rows(run)[2]['held_out/loss']


def test_another_interval_is_another_run(small_mnist, run, capsys):
  settings = _SETTINGS | dict(evaluation__barrier_every_num_rounds=1)
  assert personal_runs.train(small_mnist, run, **settings) == 2
  error = capsys.readouterr().err
  assert 'evaluation.barrier_every_num_rounds' in error
