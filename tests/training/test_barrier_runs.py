"""Runs that measure the barrier, beside `fedfish evaluate` and each other."""

import json
import shutil
import signal

import numpy as np
import pytest
import small_image_runs
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.evaluation import barrier, evaluation_clients, results
from tff_fedfish.run import (
  checkpoints,
  cohort_data,
  metrics_files,
  round_metrics,
  run_directory,
)

# Rounds 2 and 3 are measured: the multiple and the last. Of cohorts of 3.
_SETTINGS = dict(
  training__num_rounds=3,
  evaluation__barrier_every_num_rounds=2,
  engine__num_partial_sums=2,
)
_FILES = ['round_00000002.csv', 'round_00000003.csv']


def _assert_same_run(one, other):
  assert _barrier_files(one) == _barrier_files(other)
  paths = ['metrics.csv']
  rounds = checkpoints.list_rounds(one / 'checkpoints')
  assert rounds == checkpoints.list_rounds(other / 'checkpoints')
  for round_num in rounds:
    paths.append(f'checkpoints/round_{round_num:08d}/state.safetensors')
  for path in paths:
    assert (one / path).read_bytes() == (other / path).read_bytes(), path


def _barrier_files(run):
  return {path.name: path.read_bytes() for path in (run / 'barrier').iterdir()}


@pytest.fixture(scope='module')
def run(small_inputs, tmp_path_factory):
  """A finished run, not interrupted. Tests must not change it."""
  workdir = tmp_path_factory.mktemp('barrier_rounds') / 'finished'
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  return workdir


@pytest.mark.parametrize('round_num', [2, 3])
def test_equals_the_evaluation_of_the_checkpoint_before(
  small_inputs, run, tmp_path, round_num
):
  before = run / 'checkpoints' / f'round_{round_num - 1:08d}'
  arguments = ['--checkpoint', str(before), '--data', str(small_inputs[0])]
  arguments += ['--output', str(tmp_path / 'evaluation'), '--barrier']
  arguments += ['--fractions', '0', '--max_clients', '1']
  assert main(['evaluate', *arguments]) == 0
  expected = (tmp_path / 'evaluation' / 'barrier.csv').read_bytes()
  assert expected.count(b'\n') == 1 + 3
  name = f'round_{round_num:08d}.csv'
  assert (run / 'barrier' / name).read_bytes() == expected
  summary = json.loads((tmp_path / 'evaluation' / 'summary.json').read_text())
  summary = summary['client_server_barrier']
  row = metrics_files.read_metrics(run / 'metrics.csv')[round_num]
  assert row['barrier/loss'] == summary['loss']['mean'] > 0
  assert row['barrier/error'] == summary['error']['mean']
  assert row['barrier/num_clients'] == summary['num_clients'] == 3
  assert row['barrier/num_non_finite_clients'] == 0
  assert row['barrier/num_failed_clients'] == 0


@pytest.mark.slow
def test_rate_and_state_of_the_method_are_those_of_the_round(
  small_inputs, tmp_path
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
  assert small_runs.train(small_inputs, run, **settings) == 0
  before = run / 'checkpoints' / 'round_00000001'
  arguments = ['--checkpoint', str(before), '--data', str(small_inputs[0])]
  arguments += ['--output', str(tmp_path / 'evaluation'), '--barrier']
  arguments += ['--fractions', '0', '--max_clients', '1']
  assert main(['evaluate', *arguments]) == 0
  expected = (tmp_path / 'evaluation' / 'barrier.csv').read_bytes()
  assert _barrier_files(run)['round_00000002.csv'] == expected
  first, second = (
    metrics_files.read_metrics(run / 'metrics.csv')[number]['barrier/loss']
    for number in (1, 2)
  )
  # Rates of 0.55 and 0.1: clients train less far away.
  assert second < 0.5 * first


def test_what_it_leaves_behind(run):
  assert sorted(_barrier_files(run)) == _FILES
  rows = metrics_files.read_metrics(run / 'metrics.csv')
  for row in rows:
    cells = [row[name] for name in row if name.startswith('barrier/')]
    assert len(cells) == 5
    assert [cell is None for cell in cells] == [row['round'] < 2] * 5
  timings = metrics_files.read_metrics(run / 'timings.csv')
  assert [
    row['round'] for row in timings if row['barrier_seconds'] is not None
  ] == [2, 3]
  assert timings[3]['barrier_seconds'] > 0


def test_events(run):
  from tensorboard.backend.event_processing import event_accumulator

  events = event_accumulator.EventAccumulator(str(run / 'tensorboard'))
  events.Reload()
  rows = metrics_files.read_metrics(run / 'metrics.csv')
  assert [
    (event.step, event.value) for event in events.Scalars('barrier/loss')
  ] == [(number, np.float32(rows[number]['barrier/loss'])) for number in (2, 3)]


def test_resumed_run_equals_uninterrupted_bit_for_bit(
  small_inputs, run, tmp_path
):
  # As if it had been killed after round 3 was measured, while round 2 was
  # being saved; what it will write again does not read as it should.
  workdir = tmp_path / 'resumed'
  shutil.copytree(run, workdir)
  for number in (2, 3):
    shutil.rmtree(workdir / 'checkpoints' / f'round_{number:08d}')
  for name in (*_FILES, 'round_00000007.csv', '.round_00000003.csv.x1y2'):
    (workdir / 'barrier' / name).write_text('of another time')
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  _assert_same_run(workdir, run)


@pytest.mark.parametrize('during', ['measurement', 'held_out'])
def test_interrupted_round_leaves_no_trace(
  small_inputs, run, tmp_path, monkeypatch, during
):
  module, name = {
    'measurement': (barrier, '_train'),
    'held_out': (evaluation_clients, 'mean_score'),
  }[during]
  called = getattr(module, name)
  num_calls = 0

  def interrupt(*arguments, **options):
    nonlocal num_calls
    num_calls += 1
    # Round 0 is scored as well.
    if num_calls == (1 if during == 'measurement' else 2):
      signal.raise_signal(signal.SIGTERM)
    return called(*arguments, **options)

  workdir = tmp_path / 'run'
  monkeypatch.setattr(module, name, interrupt)
  code = small_runs.train(small_inputs, workdir, **_SETTINGS)
  assert code == 128 + signal.SIGTERM
  # It ended with the client in hand.
  assert num_calls == (1 if during == 'measurement' else 2)
  rows = metrics_files.read_metrics(workdir / 'metrics.csv')
  assert [row['round'] for row in rows] == [0, 1]
  assert checkpoints.list_rounds(workdir / 'checkpoints') == [0, 1]
  assert not (workdir / 'barrier').exists()
  monkeypatch.undo()
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  _assert_same_run(workdir, run)


def test_client_that_fails_when_measured_is_left_out(
  small_inputs, run, tmp_path, monkeypatch, capsys
):
  train = barrier._train
  failed = []

  def fail_once(process, state, client):
    if not failed:
      failed.append(client.client_id)
      raise OSError('no such block')
    return train(process, state, client)

  monkeypatch.setattr(barrier, '_train', fail_once)
  workdir = tmp_path / 'run'
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  assert (
    f'Round 2: client {failed[0]!r} was left out of the barrier, OSError: no '
    'such block\n'
  ) in capsys.readouterr().err
  rows = metrics_files.read_metrics(workdir / 'metrics.csv')
  assert rows[2]['barrier/num_failed_clients'] == 1
  assert rows[2]['barrier/num_clients'] == 2
  expected, found = (
    [
      entry
      for entry in results.read_barriers(directory / 'barrier' / _FILES[0])
      if entry.client_id != failed[0]
    ]
    for directory in (run, workdir)
  )
  assert found == expected
  # The training does not notice.
  assert rows[3] == metrics_files.read_metrics(run / 'metrics.csv')[3]


def test_client_that_failed_in_the_round_is_not_measured(
  small_inputs, tmp_path, monkeypatch
):
  load = cohort_data.TrainingClient.load
  failed = set()

  def fail(client):
    if client.round_num == 2 and (not failed or client.client_id in failed):
      failed.add(client.client_id)
      raise OSError('no such block')
    return load(client)

  monkeypatch.setattr(cohort_data.TrainingClient, 'load', fail)
  workdir = tmp_path / 'run'
  assert small_runs.train(small_inputs, workdir, **_SETTINGS) == 0
  row = metrics_files.read_metrics(workdir / 'metrics.csv')[2]
  assert row['train/num_failed_clients_data'] == 1
  assert row['barrier/num_clients'] == 2
  assert row['barrier/num_failed_clients'] == 0
  found = results.read_barriers(workdir / 'barrier' / _FILES[0])
  assert failed.isdisjoint(entry.client_id for entry in found)


def test_another_interval_is_another_run(small_inputs, run, capsys):
  settings = _SETTINGS | dict(evaluation__barrier_every_num_rounds=1)
  assert small_runs.train(small_inputs, run, **settings) == 2
  error = capsys.readouterr().err
  assert 'different in evaluation.barrier_every_num_rounds.' in error


@pytest.mark.slow
def test_images_with_their_dropout(tmp_path):
  corpus = small_image_runs.write_corpus(tmp_path / 'raw')
  workdir = tmp_path / 'run'
  settings = dict(
    training__num_rounds=1,
    evaluation__num_clients=0,
    evaluation__barrier_every_num_rounds=5,
  )
  assert small_image_runs.train(corpus, workdir, **settings) == 0
  start = workdir / 'checkpoints' / 'round_00000000'
  arguments = ['--checkpoint', str(start), '--data', str(corpus)]
  arguments += ['--output', str(tmp_path / 'evaluation'), '--barrier']
  assert main(['evaluate', *arguments, '--fractions', '0']) == 0
  expected = (tmp_path / 'evaluation' / 'barrier.csv').read_bytes()
  assert expected.count(b'\n') == 1 + len(small_image_runs.TRAIN_SIZES)
  assert _barrier_files(workdir) == {'round_00000001.csv': expected}


@pytest.mark.slow
def test_same_with_workers(small_inputs, tmp_path):
  rows = []
  for kind, num_workers in (('in_process', 1), ('ray', 2)):
    workdir = tmp_path / kind
    settings = _SETTINGS | dict(
      engine__kind=kind, engine__num_workers=num_workers
    )
    assert small_runs.train(small_inputs, workdir, **settings) == 0
    assert sorted(_barrier_files(workdir)) == _FILES
    rows.append(metrics_files.read_metrics(workdir / 'metrics.csv'))
  for one, other in zip(*rows, strict=True):
    for name in ('barrier/loss', 'barrier/error', 'barrier/num_clients'):
      # Threads may change the order of a sum within a matrix product.
      assert one[name] == pytest.approx(other[name], rel=1e-5)


class TestWithoutIt:
  def test_nothing_is_written(self, small_run):
    assert not (small_run / 'barrier').exists()
    (row, *_) = metrics_files.read_metrics(small_run / 'metrics.csv')
    assert not [name for name in row if 'barrier' in name]
    (row, *_) = metrics_files.read_metrics(small_run / 'timings.csv')
    assert not [name for name in row if 'barrier' in name]

  def test_run_from_before_there_was_the_setting(self, small_run, tmp_path):
    older = tmp_path / 'older'
    shutil.copytree(small_run, older)
    written = json.loads((older / 'config.json').read_text())
    assert written['evaluation'].pop('barrier_every_num_rounds') == 0
    (older / 'config.json').write_text(json.dumps(written))
    config = run_directory.read_config(older)
    assert config == run_directory.read_config(small_run)
    found = run_directory.checkpoint_to_resume(config, older)
    assert found.path == older.resolve() / 'checkpoints' / 'round_00000004'
    # Other columns could not be continued.
    for name, columns in (
      ('metrics.csv', round_metrics.metric_names(config)),
      ('timings.csv', round_metrics.timing_names(config)),
    ):
      header = (older / name).read_text().splitlines()[0]
      assert header == ','.join(['round', *columns])


class TestSetting:
  def _train(self, *overrides):
    return main(['train', '--config', small_runs.CONFIG, *overrides])

  def test_dry_run(self, capsys):
    setting = '--config.evaluation.barrier_every_num_rounds=7'
    # The corpus is not there.
    assert self._train('--dry_run', setting) == 2
    assert '"barrier_every_num_rounds": 7' in capsys.readouterr().out

  @pytest.mark.parametrize(
    ('value', 'words'),
    [('-1', 'at least 0, found -1'), ('often', "an int, found 'often'")],
  )
  def test_not_a_number_of_rounds(self, capsys, value, words):
    setting = f'--config.evaluation.barrier_every_num_rounds={value}'
    assert self._train('--dry_run', setting) == 2
    error = capsys.readouterr().err
    assert (
      f'`config.evaluation.barrier_every_num_rounds` must be {words}' in error
    )
    assert error.count('\n') == 1
