"""`fedfish train` with clients that keep tensors."""

import json
import shutil
import threading

import numpy as np
import pytest
import small_runs
from stateful_runs import assert_same_run, live_states

from models.model_shapes import num_parameters
from tff_fedfish.cli.main import main
from tff_fedfish.planning.disk import states_on_disk
from tff_fedfish.run import (
  checkpoints,
  divergence,
  run_directory,
  tables,
  tensor_files,
)
from tff_fedfish.run.client_state import ClientStates
from tff_fedfish.run.store import RoundWriter
from tff_fedfish.training import record_parts

_SETTINGS = dict(
  algorithm__name='moon',
  client_work__num_local_epochs=1,
  evaluation__num_clients=0,
  evaluation__every_num_rounds=0,
  checkpoints__every_num_rounds=2,
  training__num_rounds=6,
)


def _train(inputs, workdir, **settings):
  return small_runs.train(inputs, workdir, **_SETTINGS | settings)


@pytest.fixture(scope='module')
def whole_run(small_inputs, tmp_path_factory):
  run = tmp_path_factory.mktemp('kept_states') / 'whole'
  assert _train(small_inputs, run) == 0
  return run


@pytest.fixture
def run(whole_run, tmp_path):
  """A copy of the run that is to go on for another round."""
  copy = tmp_path / 'run'
  shutil.copytree(whole_run, copy)
  return copy


def test_a_resumed_run_ends_as_if_it_had_not_stopped(
  small_inputs, whole_run, tmp_path
):
  run = tmp_path / 'run'
  assert _train(small_inputs, run, training__num_rounds=3) == 0
  # After the checkpoint of round 2, round 3 is run again.
  shutil.rmtree(run / 'checkpoints' / 'round_00000003')
  assert (run / 'client_states' / 'round_00000003').is_dir()
  assert _train(small_inputs, run) == 0
  assert_same_run(run, whole_run)


def test_what_clients_keep_changes_the_run(small_inputs, whole_run, tmp_path):
  run = tmp_path / 'run'
  assert _train(small_inputs, run, algorithm__mu=0.0) == 0
  found, moon = (
    (path / 'metrics.csv').read_text().splitlines() for path in (run, whole_run)
  )
  # In their first rounds clients have no other past than the server's model.
  assert found[2] == moon[2]
  assert found[7] != moon[7]


def test_superseded_states_are_removed(whole_run):
  states = ClientStates(whole_run)
  num_live = len(live_states(whole_run))
  files = list((whole_run / 'client_states').glob('*/*.safetensors'))
  assert num_live <= len(files) <= num_live + 2 * 3
  assert states.num_bytes == sum(path.stat().st_size for path in files)
  config = run_directory.read_config(whole_run)
  (client,) = {path.stat().st_size for path in files}
  planned = states_on_disk(config, num_clients=num_live)
  # The header of a file names its tensors.
  assert planned.client_bytes < client < planned.client_bytes + 2000
  # Each state counted at its place, by round.
  rows = tables.read_metrics(whole_run / 'timings.csv')
  sizes = [row['client_state_bytes'] for row in rows]
  assert sizes[:2] == [0, 0] and max(sizes) <= 1.2 * planned.peak_bytes


def test_verify(whole_run, run, capsys):
  num_live = len(live_states(whole_run))
  assert main(['verify', str(run)]) == 0
  assert f'{run}: OK (4 checkpoints, {num_live} client states, ' in (
    capsys.readouterr().out
  )
  path = max((run / 'client_states').glob('*/*.safetensors'))
  _flip_a_bit(path)
  assert main(['verify', str(run)]) == 2
  assert f"'{path}' is damaged: " in capsys.readouterr().err


def _flip_a_bit(path):
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)


def test_a_flipped_bit(small_inputs, whole_run, run, capsys):
  paths = list((run / 'client_states').glob('*/*.safetensors'))
  for path in paths:
    _flip_a_bit(path)
  assert _train(small_inputs, run, training__num_rounds=9) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith(f"fedfish: error: '{run}/client_states/round_")
  assert "' is damaged: it must have SHA-256 " in error
  assert error.endswith(tensor_files.ADVICE)
  # Nothing is lost: with the files restored the same checkpoint resumes.
  for path in paths:
    _flip_a_bit(path)
  assert _train(small_inputs, run, training__num_rounds=7) == 0
  assert (run / 'checkpoints' / 'round_00000006').is_dir()


def test_states_that_are_gone(small_inputs, run, capsys):
  shutil.move(run / 'client_states', run / 'elsewhere')
  for options in ((), ('--dry_run',)):
    code = small_runs.train(
      small_inputs, run, *options, **_SETTINGS | {'training__num_rounds': 9}
    )
    assert code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"'{run}/client_states' lacks the client states of round 6" in error
  shutil.move(run / 'elsewhere', run / 'client_states')
  assert _train(small_inputs, run, training__num_rounds=7) == 0


def test_a_round_whose_states_do_not_fit(
  small_inputs, whole_run, tmp_path, capsys, monkeypatch
):
  run = tmp_path / 'run'
  settings = dict(checkpoints__every_num_rounds=0)
  # Room for the warning and for two rounds.
  free = iter([10**12, 10**12, 10**12])
  usage = shutil.disk_usage(tmp_path)
  with monkeypatch.context() as patch:
    patch.setattr(
      shutil, 'disk_usage', lambda path: usage._replace(free=next(free, 5000))
    )
    assert _train(small_inputs, run, **settings) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert 'failed: Round 3 takes up to ' in error
    assert error.endswith(
      f"B of client states, but 4.88 KiB are free in '{run}'. Free disk space; "
      'the same command continues after round 2.'
    )
    # Again it says so, and trains no further round.
    assert checkpoints.list_rounds(run / 'checkpoints') == [0, 2]
    assert _train(small_inputs, run, **settings) == 1
    assert checkpoints.list_rounds(run / 'checkpoints') == [0, 2]
  assert _train(small_inputs, run, **settings) == 0
  assert (run / 'metrics.csv').read_bytes() == (
    (whole_run / 'metrics.csv').read_bytes()
  )
  assert live_states(run) == live_states(whole_run)


def test_a_disk_that_fills_up(
  small_inputs, whole_run, tmp_path, capsys, monkeypatch
):
  run, add = tmp_path / 'run', RoundWriter.add_client

  def add_unless_full(self, index, *arguments):
    if self.path.name == 'round_00000004' and index == 1:
      raise OSError(28, 'No space left on device', 'FILE')
    add(self, index, *arguments)

  monkeypatch.setattr(RoundWriter, 'add_client', add_unless_full)
  assert _train(small_inputs, run) == 1
  error = capsys.readouterr().err.splitlines()[-1]
  assert 'No space left on device' in error and 'FILE' in error
  # The rounds before are saved, and nothing of this one is left.
  assert checkpoints.list_rounds(run / 'checkpoints')[-1] == 3
  assert not list((run / 'client_states').glob('.*'))
  monkeypatch.undo()
  assert _train(small_inputs, run) == 0
  assert_same_run(run, whole_run)


def test_a_row_that_cannot_be_written(
  small_inputs, whole_run, tmp_path, monkeypatch
):
  run, record = tmp_path / 'run', record_parts.TablesPart.record

  def record_unless_full(self, done):
    if done.round_num == 4:
      raise OSError(28, 'No space left on device', 'metrics.csv')
    record(self, done)

  monkeypatch.setattr(record_parts.TablesPart, 'record', record_unless_full)
  settings = dict(checkpoints__every_num_rounds=0)
  assert _train(small_inputs, run, **settings) == 1
  # Round 3 is saved, with the states of clients that round 4 had trained.
  assert checkpoints.list_rounds(run / 'checkpoints') == [0, 3]
  monkeypatch.undo()
  assert _train(small_inputs, run) == 0
  assert_same_run(run, whole_run)


def test_a_round_that_is_given_up(
  small_inputs, whole_run, tmp_path, monkeypatch
):
  run, add = tmp_path / 'run', RoundWriter.add_client

  def add_and_interrupt(self, index, *arguments):
    add(self, index, *arguments)
    if self.path.name == 'round_00000004' and index == 1:
      # As Ctrl-C while a round runs.
      import os
      import signal

      os.kill(os.getpid(), signal.SIGTERM)

  assert threading.current_thread() is threading.main_thread()
  monkeypatch.setattr(RoundWriter, 'add_client', add_and_interrupt)
  assert _train(small_inputs, run) == 143
  assert not list((run / 'client_states').glob('.*'))
  assert not (run / 'client_states' / 'round_00000004').exists()
  monkeypatch.undo()
  assert _train(small_inputs, run) == 0
  assert_same_run(run, whole_run)


def test_barrier(small_inputs, run, capsys):
  corpus, _ = small_inputs
  arguments = ['evaluate', '--data', str(corpus), '--barrier']
  arguments += ['--split_unit', 'sequences', '--personalization_epochs', '1']
  output = run / 'out'
  assert (
    main([*arguments, '--checkpoint', str(run), '--output', str(output)]) == 0
  )
  summary = json.loads((output / 'summary.json').read_text())
  assert np.isfinite(summary['client_server_barrier']['loss']['mean'])
  older = run / 'checkpoints' / 'round_00000002'
  capsys.readouterr()
  assert main([*arguments, '--checkpoint', str(older)]) == 2
  assert capsys.readouterr().err.splitlines()[-1] == (
    'fedfish: error: `--checkpoint` is of round 2, whose client states are no '
    'longer stored. Name the last checkpoint, of round 6.'
  )


def test_barrier_from_the_last_good_checkpoint_of_a_diverged_run(
  small_inputs, tmp_path
):
  run = tmp_path / 'run'
  settings = dict(
    server__optimizer='sgd',
    server__learning_rate=1e30,
    training__max_non_finite_rounds=2,
    checkpoints__every_num_rounds=1,
  )
  assert _train(small_inputs, run, **settings) == 1
  good = divergence.diverged_checkpoint(run)
  newest = checkpoints.list_rounds(run / 'checkpoints')[-1]
  assert good.name < f'round_{newest:08d}'
  arguments = ['evaluate', '--data', str(small_inputs[0]), '--barrier']
  arguments += ['--split_unit', 'sequences', '--checkpoint', str(good)]
  assert main([*arguments, '--output', str(tmp_path / 'out')]) == 0


def test_barrier_while_training_is_that_of_the_checkpoint(
  small_inputs, whole_run, tmp_path
):
  run = tmp_path / 'run'
  settings = dict(
    evaluation__barrier_every_num_rounds=1, checkpoints__every_num_rounds=0
  )
  assert _train(small_inputs, run, **settings) == 0
  assert live_states(run) == live_states(whole_run)
  rows = tables.read_metrics(run / 'metrics.csv')
  assert not any(row['barrier/num_failed_clients'] for row in rows)
  # After round 5, from the states that its clients had by then.
  shorter = tmp_path / 'shorter'
  settings = dict(training__num_rounds=5, checkpoints__every_num_rounds=0)
  assert _train(small_inputs, shorter, **settings) == 0
  corpus, _ = small_inputs
  arguments = ['evaluate', '--data', str(corpus), '--barrier']
  arguments += ['--split_unit', 'sequences', '--checkpoint', str(shorter)]
  assert main([*arguments, '--output', str(shorter / 'out')]) == 0
  summary = json.loads((shorter / 'out' / 'summary.json').read_text())
  loss = summary['client_server_barrier']['loss']
  assert rows[6]['barrier/loss'] == loss['mean']


class TestOtherMethods:
  """Each trains, resumes and is refused in one line where it cannot."""

  def _resumed(self, inputs, tmp_path, **settings):
    whole, run = tmp_path / 'whole', tmp_path / 'run'
    settings = {'training__num_rounds': 3, **settings}
    assert _train(inputs, whole, **settings) == 0
    assert _train(inputs, run, **settings | {'training__num_rounds': 2}) == 0
    assert _train(inputs, run, **settings) == 0
    assert_same_run(run, whole)
    return whole

  def test_scaffold(self, small_inputs, tmp_path):
    self._resumed(small_inputs, tmp_path, algorithm__name='scaffold')

  def test_kept_adamw_state(self, small_inputs, tmp_path):
    run = self._resumed(
      small_inputs,
      tmp_path,
      algorithm__name='fed_avg',
      client_work__optimizer='adamw',
      client_work__learning_rate=0.01,
      client_work__keeps_optimizer_state=True,
    )
    config = run_directory.read_config(run)
    (_, content), *_ = live_states(run).values()
    # Two moments of every weight.
    assert len(content) > states_on_disk(config).client_bytes
    num_weights = num_parameters(config.model_shape())
    assert states_on_disk(config).client_bytes == 2 * 4 * num_weights
