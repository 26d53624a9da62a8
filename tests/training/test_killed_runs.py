"""Runs that are stopped in their writes end as if nobody had touched them."""

import signal

import pytest
import run_killer
import small_image_runs
from stateful_runs import assert_same_run

from tff_fedfish.run import checkpoints

_SHARED = dict(
  client_work__num_local_epochs=1,
  cohorts__cohort_size=None,
  evaluation__num_clients=0,
  model__preset='linear',
  server__optimizer='sgd',
  server__learning_rate=1.0,
  training__num_rounds=4,
)
# Before the round's rename; between that and its row in metrics.csv, which
# follows that in timings.csv; between the row and the checkpoint.
_STATES = (
  'os.rename */client_states/round_00000001',
  'fsync */timings.csv',
  'tempfile.mkdtemp */checkpoints/.round_00000002.*',
)


def _stop(images, run, settings, stops):
  arguments = ['train', '--config', small_image_runs.CONFIG]
  arguments += ['--workdir', str(run)]
  overrides = small_image_runs.overrides(images, **settings)
  return run_killer.stop([*arguments, *overrides], stops)


def _assert_ends_as_undisturbed(images, run, settings):
  undisturbed = run.with_name('undisturbed')
  for workdir in (run, undisturbed):
    assert small_image_runs.train(images, workdir, **settings) == 0
  assert_same_run(run, undisturbed)
  for pattern in ('checkpoints/.*', 'client_states/.*', 'uploads/*', '.[!l]*'):
    assert not list(run.glob(pattern))
  return undisturbed


def test_killed_and_interrupted(small_images, tmp_path):
  run, settings = tmp_path / 'run', _SHARED | dict(algorithm__name='fed_avg')
  stops = [
    (signal.SIGKILL, 'os.rename */checkpoints/round_00000002'),
    # In the round after it.
    (signal.SIGTERM, 'tempfile.mkdtemp */checkpoints/.round_00000002.*'),
  ]
  printed = _stop(small_images, run, settings, stops)
  assert 'finishing the client in hand' in printed
  assert 'the same command continues' in printed
  assert not list((run / 'checkpoints').glob('.*'))
  assert 2 <= checkpoints.list_rounds(run / 'checkpoints')[-1] < 4
  _assert_ends_as_undisturbed(small_images, run, settings)


def test_extended_it_keeps_the_same_checkpoints(small_images, tmp_path):
  settings = _SHARED | dict(
    algorithm__name='fed_avg',
    checkpoints__every_num_rounds=3,
    checkpoints__keep_last=2,
  )
  for num_rounds, kept in ((5, [0, 3, 5]), (6, [0, 3, 6])):
    settings |= dict(training__num_rounds=num_rounds)
    assert small_image_runs.train(small_images, tmp_path, **settings) == 0
    assert checkpoints.list_rounds(tmp_path / 'checkpoints') == kept


@pytest.mark.slow
@pytest.mark.parametrize(
  ('calls', 'settings'),
  [
    (
      (
        # At its start, and at that of a run that resumes.
        'os.rename */config.json',
        'os.rename */metrics.csv',
        'fsync */metrics.csv',
        'shutil.rmtree */checkpoints/*',
      ),
      dict(
        algorithm__name='fed_avg',
        checkpoints__keep_last=1,
        training__num_rounds=6,
      ),
    ),
    (_STATES, dict(algorithm__name='scaffold')),
    (
      (
        'os.rename */uploads/round_00000001',
        'fsync */timings.csv',
      ),
      dict(
        algorithm__name='fed_fisher',
        algorithm__num_solver_steps=5,
        algorithm__num_validation_rows=0,
      ),
    ),
  ],
  ids=['fed_avg', 'scaffold', 'fed_fisher'],
)
def test_at_other_writes(calls, settings, small_images, tmp_path):
  run, settings = tmp_path / 'run', _SHARED | settings
  stops = [(signal.SIGKILL, call) for call in calls]
  _stop(small_images, run, settings, stops)
  _assert_ends_as_undisturbed(small_images, run, settings)


@pytest.mark.slow
def test_in_other_phases(small_images, tmp_path):
  # Round 1 is FedAvg, round 2 computes features, round 3 is convex.
  run = tmp_path / 'run'
  settings = _SHARED | dict(
    algorithm__name='tct',
    algorithm__num_bootstrap_rounds=1,
    algorithm__num_convex_steps=50,
    algorithm__convex_learning_rate=1e-4,
    training__num_rounds=3,
  )
  calls = (
    'os.rename */features/round_00000002',
    'os.rename */feature_bases/round_00000002',
    'os.rename */client_states/round_00000003',
  )
  stops = [(signal.SIGKILL, call) for call in calls]
  _stop(small_images, run, settings, stops)
  undisturbed = _assert_ends_as_undisturbed(small_images, run, settings)
  for name in ('features', 'feature_bases'):
    found, wanted = (
      {p.relative_to(of): p.read_bytes() for p in of.glob(f'{name}/*/*')}
      for of in (run, undisturbed)
    )
    assert found == wanted
