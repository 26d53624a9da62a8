"""Logs that lost the end of their last line do not cost a run."""

import shutil

import pytest
import small_runs


def _files(directory):
  """Returns every file below a directory, with its bytes."""
  return {
    path: path.read_bytes() for path in directory.rglob('*') if path.is_file()
  }


@pytest.fixture(scope='module')
def interrupted(small_inputs, tmp_path_factory):
  """A run of which rounds 0 to 3 of 4 are done; not to be changed."""
  run = tmp_path_factory.mktemp('cut_off') / 'run'
  assert small_runs.train(small_inputs, run, training__num_rounds=3) == 0
  return run


@pytest.mark.parametrize(
  'case',
  [
    ('metrics.csv', 20, '', 2),
    ('metrics.csv', 20, '\n', 2),
    ('timings.csv', 5, '', 3),
  ],
)
def test_run_goes_on_after_the_last_whole_row(
  interrupted, small_inputs, small_run, tmp_path, capsys, case
):
  name, num_lost, ending, round_num = case
  run = shutil.copytree(interrupted, tmp_path / 'run')
  path = run / name
  path.write_text(path.read_text()[:-num_lost] + ending)
  # The old last round is scored and would not have been.
  assert small_runs.train(small_inputs, run) == 0
  errors = capsys.readouterr().err
  assert f'Continuing after round {round_num}.' in errors
  assert (round_num == 2) == (
    'fedfish: warning: metrics.csv has no whole row for round 3; passing '
    'over the checkpoint.' in errors
  )
  state = 'checkpoints/round_00000004/state.safetensors'
  assert (run / state).read_bytes() == (small_run / state).read_bytes()
  rows = (run / 'metrics.csv').read_text().splitlines()
  assert [row.split(',')[0] for row in rows] == ['round', *'01234']


def test_only_round_0_would_be_left(small_inputs, small_run, tmp_path, capsys):
  workdir = shutil.copytree(small_run, tmp_path / 'copy')
  for round_num in (1, 2, 3):
    shutil.rmtree(workdir / 'checkpoints' / f'round_{round_num:08d}')
  path = workdir / 'metrics.csv'
  path.write_text(path.read_text()[:-20])
  before = _files(workdir)
  assert small_runs.train(small_inputs, workdir, training__num_rounds=5) == 2
  assert (
    'must have a row for round 4, from which the run resumes, but its last '
    'before is 3.'
  ) in capsys.readouterr().err
  assert _files(workdir) == before
