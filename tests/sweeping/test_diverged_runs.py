"""Runs of a sweep that diverge: evaluated, marked, never chosen, not failed."""

import dataclasses
import json
import math
import pathlib

import planned_configs
import pytest
import small_runs

from tff_fedfish import files
from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.evaluation import results
from tff_fedfish.reporting import findings, loading
from tff_fedfish.run import metrics_files
from tff_fedfish.sweeping import run
from tff_fedfish.sweeping.jobs import Job

_HEADER = 'round,train/num_clients,train/num_non_finite_clients\n'
_OPTIONS = dict(max_clients=2, personalization_epochs=1, fractions=[0])


def _write_run(directory, non_finite, *, last_round=5, limit=2):
  """Writes a run of 9 rounds with these non-finite ones, all saved."""
  config = planned_configs.by_hand(
    training__num_rounds=9, training__max_non_finite_rounds=limit
  )
  for round_num in range(last_round + 1):
    path = directory / 'checkpoints' / f'round_{round_num:08d}'
    path.mkdir(parents=True)
  files.write_json(
    directory / 'config.json', config_loading.to_json_dict(config)
  )
  rows = [f'{r},4,{4 * (r in non_finite)}\n' for r in range(last_round + 1)]
  (directory / 'metrics.csv').write_text(_HEADER + ''.join(rows))
  return config


def _job(tmp_path, config=None):
  path = tmp_path / 'run'
  return Job(
    name='x',
    run=path,
    num_rounds=9,
    train=['train'],
    evaluations={
      path / 'evaluations' / name: [
        'evaluate',
        '--checkpoint',
        str(path / 'checkpoints' / f'round_{round_num:08d}'),
        '--barrier',
      ]
      for name, round_num in (('first', 9), ('second', 9))
    },
    log=tmp_path / 'x.log',
    config=config,
    evaluates_diverged=True,
  )


def test_a_diverged_run_has_failed_unless_the_job_says_otherwise(tmp_path):
  job = dataclasses.replace(_job(tmp_path), evaluates_diverged=False)
  _write_run(job.run, {4, 5})
  assert job.diverged_checkpoint()
  assert job.commands_if_diverged() is None


def test_last_good_checkpoint_takes_the_place_of_later_ones(tmp_path):
  job = _job(tmp_path)
  _write_run(job.run, {4, 5})
  found = job.commands_if_diverged()
  assert [command[0] for command in found] == ['evaluate'] * 2
  assert [command[3] for command in found] == ['--barrier'] * 2
  names = [pathlib.Path(command[2]).name for command in found]
  # Round 3 is not good: from its model no client returned a finite update.
  assert names == ['round_00000002'] * 2
  (job.run / 'evaluations' / 'first').mkdir(parents=True)
  assert len(job.commands_if_diverged()) == 1
  assert not job.is_done()
  (job.run / 'evaluations' / 'second').mkdir()
  assert job.commands_if_diverged() == []
  assert job.is_done()


@pytest.mark.parametrize(
  ('non_finite', 'limit'), [({4, 5}, 3), ({4, 5}, 0), ({3, 4}, 2)]
)
def test_other_runs_have_not_diverged(tmp_path, non_finite, limit):
  job = _job(tmp_path)
  assert job.commands_if_diverged() is None
  _write_run(job.run, non_finite, limit=limit)
  assert job.commands_if_diverged() is None
  for output in job.evaluations:
    output.mkdir(parents=True)
  assert not job.is_done()


def test_diverged_run_of_another_config_is_not_done(tmp_path):
  config = _write_run(tmp_path / 'run', {4, 5})
  for output in _job(tmp_path).evaluations:
    output.mkdir(parents=True)
  assert _job(tmp_path, config).is_done()
  other = planned_configs.by_hand(client_work__learning_rate=0.7)
  assert not _job(tmp_path, other).is_done()


@pytest.mark.slow
def test_an_arm_that_diverges(sweep_file, small_inputs, tmp_path, capsys):
  workdir = tmp_path / 'w'
  file = sweep_file(
    {
      'grid': {'server.learning_rate': [1e30, 0.1]},
      'evaluate': [_OPTIONS],
    },
    overrides=small_runs.overrides(
      *small_inputs,
      server__optimizer='sgd',
      algorithm__name='fed_avg',
      training__num_rounds=6,
      training__max_non_finite_rounds=2,
    ),
  )
  assert run.run_sweep(main, file, workdir, num_jobs=2) == 0
  output = capsys.readouterr()
  arm = workdir / 'arms' / 'server_lr1e+30'
  good = arm / 'checkpoints' / 'round_00000000'
  line = (
    'server_lr1e+30: diverged, stopped after round 3; its last good '
    f'checkpoint is {good}\n'
  )
  assert line in output.err
  assert f'2 of 2 runs done, 1 of them diverged: {workdir}/arms\n' in output.out
  assert metrics_files.read_metrics(arm / 'metrics.csv')[-1]['round'] == 3
  corpus = pathlib.Path(small_inputs[0]).name
  found = results.read_evaluation(arm / 'evaluations' / corpus)
  assert found.summary['checkpoint'] == {'round': 0}
  # ln 256 = 5.545: the untrained model.
  [row] = found.summary['fractions']
  assert row['loss']['mean'] == pytest.approx(math.log(256), abs=0.2)
  text = (workdir / 'sweep.json').read_text()
  statuses = [entry['status'] for entry in json.loads(text)['arms']]
  assert statuses == ['diverged', 'done']
  run.print_sweep(file, workdir)
  printed = capsys.readouterr().out
  assert [line.count('diverged') for line in printed.splitlines()].count(1) == 1
  # Nothing is left to do, and nothing is done again.
  before = {path: path.stat().st_mtime_ns for path in arm.rglob('*')}
  assert run.run_sweep(main, file, workdir) == 0
  assert {path: path.stat().st_mtime_ns for path in arm.rglob('*')} == before
  assert line in capsys.readouterr().err
  assert (workdir / 'sweep.json').read_text() == text
  # The report loads both and says which one it is.
  runs = loading.load_runs(sorted((workdir / 'arms').iterdir()))
  assert [run.label.endswith(' (diverged)') for run in runs] == [False, True]
  notes = ' '.join(findings.notes(runs))
  assert 'diverged and stopped after round 3 of 6' in notes


@pytest.mark.slow
def test_search_run_that_diverges_is_not_chosen(
  sweep_file, small_inputs, tmp_path
):
  workdir = tmp_path / 'w'
  file = sweep_file(
    {
      'grid': {'seeds.model_seed': [5]},
      'learning_rate_search': {
        # The second is far worse than the untrained model, which is the last
        # good one of the first.
        'settings': {'server.learning_rate': [1e30, 30.0]},
        'num_rounds': 2,
        'validation_fraction': 0.3,
        'num_clients': 0,
      },
    },
    overrides=small_runs.overrides(
      *small_inputs,
      server__optimizer='sgd',
      algorithm__name='fed_avg',
      training__num_rounds=1,
      training__max_non_finite_rounds=1,
    ),
  )
  assert run.run_sweep(main, file, workdir, num_jobs=2) == 0
  values = json.loads((workdir / 'sweep.json').read_text())
  diverged, done = values['search_runs']
  assert (diverged['status'], done['status']) == ('diverged', 'done')
  assert diverged['score'] is None
  assert done['score'] > math.log(256) + 1
  [choice] = values['learning_rates']
  assert choice['chosen'] == {'server.learning_rate': 30.0}
