"""`fedfish train` with clients that keep tensors."""

import functools
import shutil
import signal

import pytest
from personal_runs import train
from stateful_runs import assert_same_run, live_states

from models.model_shapes import num_parameters
from tff_fedfish import files
from tff_fedfish.cli.main import main
from tff_fedfish.evaluation import statistics
from tff_fedfish.evaluation.results import read_evaluation
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

# Three of five clients in a round, and the linear model.
_SETTINGS = dict(
  algorithm__name='moon',
  client_work__num_local_epochs=1,
  cohorts__cohort_size=3,
  evaluation__num_clients=0,
  evaluation__every_num_rounds=0,
  checkpoints__every_num_rounds=2,
  training__num_rounds=6,
)
_ONE_MORE = dict(training__num_rounds=7)


def _train(corpus, workdir, *options, **settings):
  return train(corpus, workdir, *options, **_SETTINGS | settings)


def _barrier(corpus, checkpoint, output):
  """Returns the exit code of `fedfish evaluate --barrier`."""
  arguments = ['--data', str(corpus), '--checkpoint', str(checkpoint)]
  arguments += ['--barrier', '--fractions', '0', '--output', str(output)]
  return main(['evaluate', *arguments])


@pytest.fixture(scope='module')
def whole_run(small_mnist, tmp_path_factory):
  run = tmp_path_factory.mktemp('kept_states') / 'whole'
  assert _train(small_mnist, run) == 0
  return run


@pytest.fixture
def run(whole_run, tmp_path):
  """A copy of the run that is to go on for another round."""
  return shutil.copytree(whole_run, tmp_path / 'run')


def test_a_resumed_run_ends_as_if_it_had_not_stopped(
  small_mnist, whole_run, tmp_path, monkeypatch
):
  run = tmp_path / 'run'
  assert _train(small_mnist, run, training__num_rounds=3) == 0
  # After the checkpoint of round 2, round 3 is run again.
  shutil.rmtree(run / 'checkpoints' / 'round_00000003')
  assert (run / 'client_states' / 'round_00000003').is_dir()
  flushed = []
  monkeypatch.setattr(files, 'sync', flushed.append)
  assert _train(small_mnist, run) == 0
  assert_same_run(run, whole_run)
  # States are on the disk before the checkpoint that names them.
  states = flushed.index(run / 'client_states' / 'round_00000004')
  assert states < flushed.index(run / 'checkpoints')


def test_what_clients_keep_changes_the_run(
  small_mnist, whole_run, tmp_path, monkeypatch
):
  run = tmp_path / 'run'
  monkeypatch.setattr(ClientStates, 'path_for', lambda *unused: None)
  assert _train(small_mnist, run) == 0
  found, moon = (
    (path / 'metrics.csv').read_text().splitlines() for path in (run, whole_run)
  )
  # In their first rounds clients have no past.
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


def _flip_a_bit(path):
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)


def test_a_flipped_bit(small_mnist, run, capsys):
  num_live = len(live_states(run))
  assert main(['verify', str(run)]) == 0
  assert f'{run}: OK (4 checkpoints, {num_live} client states, ' in (
    capsys.readouterr().out
  )
  paths = list((run / 'client_states').glob('*/*.safetensors'))
  for path in paths:
    _flip_a_bit(path)
  for command in (
    lambda: main(['verify', str(run)]),
    lambda: _train(small_mnist, run, **_ONE_MORE),
  ):
    assert command() == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"fedfish: error: '{run}/client_states/round_")
    assert "' is damaged: it must have SHA-256 " in error
    assert error.endswith(tensor_files.ADVICE)
  # Nothing is lost: with the files restored the same checkpoint resumes.
  for path in paths:
    _flip_a_bit(path)
  assert _train(small_mnist, run, **_ONE_MORE) == 0
  assert (run / 'checkpoints' / 'round_00000006').is_dir()


@pytest.mark.parametrize('options', [(), ('--dry_run',)])
def test_states_that_are_gone(small_mnist, run, capsys, options):
  shutil.rmtree(run / 'client_states')
  assert _train(small_mnist, run, *options, **_ONE_MORE) == 2
  error = capsys.readouterr().err.splitlines()[-1]
  assert f"'{run}/client_states' lacks the client states of round 6" in error


def test_a_round_whose_states_do_not_fit(
  small_mnist, whole_run, tmp_path, capsys, monkeypatch
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
    assert _train(small_mnist, run, **settings) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert 'failed: Round 3 takes up to ' in error
    assert error.endswith(
      f"B of client states, but 4.88 KiB are free in '{run}'. Free disk space; "
      'the same command continues after round 2.'
    )
    # Again it says so, and trains no further round.
    assert checkpoints.list_rounds(run / 'checkpoints') == [0, 2]
    assert _train(small_mnist, run, **settings) == 1
    assert checkpoints.list_rounds(run / 'checkpoints') == [0, 2]
  assert _train(small_mnist, run, **settings) == 0
  assert_same_run(run, whole_run)


def _fill_disk():
  raise OSError(28, 'No space left on device', 'FILE')


def _interrupt():
  signal.raise_signal(signal.SIGTERM)


def _stop_at_the_second_client(patch, stop):
  add = RoundWriter.add_client

  def add_and_stop(self, index, *arguments):
    if self.path.name == 'round_00000004' and index == 1:
      stop()
    add(self, index, *arguments)

  patch.setattr(RoundWriter, 'add_client', add_and_stop)


def _stop_at_the_row(patch, stop):
  write_row = record_parts.write_row

  def stop_or_write(run, done):
    if done.round_num == 4:
      stop()
    write_row(run, done)

  patch.setattr(record_parts, 'write_row', stop_or_write)


@pytest.mark.parametrize(
  'case',
  [
    (_stop_at_the_second_client, _fill_disk, 1, 'No space left on device: '),
    # Clients of round 4 have trained; those states are not of round 3.
    (_stop_at_the_row, _fill_disk, 1, 'No space left on device: '),
    (_stop_at_the_second_client, _interrupt, 143, 'round 3'),
  ],
)
def test_a_round_that_is_not_finished(
  small_mnist, whole_run, tmp_path, capsys, monkeypatch, case
):
  place, stop, code, words = case
  run = tmp_path / 'run'
  with monkeypatch.context() as patch:
    place(patch, stop)
    assert _train(small_mnist, run, checkpoints__every_num_rounds=0) == code
  assert words in capsys.readouterr().err.splitlines()[-1]
  # Round 3 is saved, and nothing of the next one is left.
  assert checkpoints.list_rounds(run / 'checkpoints') == [0, 3]
  assert not list((run / 'client_states').glob('.*'))
  assert _train(small_mnist, run) == 0
  assert_same_run(run, whole_run)


@pytest.mark.slow
def test_barrier_while_training_is_that_of_the_checkpoint(
  small_mnist, whole_run, tmp_path, capsys
):
  run = tmp_path / 'run'
  settings = dict(evaluation__barrier_every_num_rounds=1)
  assert _train(small_mnist, run, **settings) == 0
  assert live_states(run) == live_states(whole_run)
  rows = tables.read_metrics(run / 'metrics.csv')
  assert not any(row['barrier/num_failed_clients'] for row in rows)
  # After round 5, from the states that its clients had by then.
  shorter, output = tmp_path / 'shorter', tmp_path / 'out'
  assert _train(small_mnist, shorter, training__num_rounds=5) == 0
  assert _barrier(small_mnist, shorter, output) == 0
  found = statistics.barrier_scores(read_evaluation(output).barriers)
  assert rows[6]['barrier/loss'] == found.loss.mean
  older = checkpoints.path_of(shorter / 'checkpoints', 2)
  assert _barrier(small_mnist, older, tmp_path / 'older') == 2
  assert capsys.readouterr().err.splitlines()[-1] == (
    'fedfish: error: `--checkpoint` is of round 2, whose client states are no '
    'longer stored. Name the last checkpoint, of round 5.'
  )


@pytest.mark.slow
def test_barrier_from_the_last_good_checkpoint_of_a_diverged_run(
  small_mnist, tmp_path
):
  run = tmp_path / 'run'
  settings = dict(
    client_work__learning_rate=50.0,
    server__learning_rate=1e38,
    training__max_non_finite_rounds=2,
    checkpoints__every_num_rounds=1,
  )
  assert _train(small_mnist, run, **settings) == 1
  good = divergence.diverged_checkpoint(run)
  newest = checkpoints.list_rounds(run / 'checkpoints')[-1]
  assert good.name < f'round_{newest:08d}'
  assert _barrier(small_mnist, good, tmp_path / 'out') == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_tensors', 'settings'),
  [
    # The client's variate, as large as the model.
    (1, dict(algorithm__name='scaffold')),
    # Two moments of every weight.
    (
      2,
      dict(
        algorithm__name='fed_avg',
        client_work__optimizer='adamw',
        client_work__keeps_optimizer_state=True,
      ),
    ),
  ],
)
def test_other_methods_resume(small_mnist, tmp_path, num_tensors, settings):
  whole, run = tmp_path / 'whole', tmp_path / 'run'
  train = functools.partial(_train, small_mnist, **settings)
  assert train(whole, training__num_rounds=3) == 0
  for num_rounds in (2, 3):
    assert train(run, training__num_rounds=num_rounds) == 0
  assert_same_run(run, whole)
  config = run_directory.read_config(run)
  num_weights = num_parameters(config.model_shape())
  expected = num_tensors * 4 * num_weights
  assert states_on_disk(config).client_bytes == expected
  (_, content), *_ = live_states(run).values()
  assert expected < len(content) < expected + 2000
