"""Whole sweeps of tiny runs, in processes of their own."""

import csv
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import load
from tff_fedfish.data import client_splits
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import evaluator, results
from tff_fedfish.reporting import loading, notes, scores
from tff_fedfish.run import run_directory, tables
from tff_fedfish.sweeping import expand, run, searches

_ROOT = pathlib.Path(__file__).parents[2]
_SIZES = dict(max_clients=2, personalization_epochs=1, fractions=[0, 0.5])

# Every test here starts TensorFlow several times.
pytestmark = pytest.mark.slow


def _sweep(sweep_file, small_inputs, sweep, **settings):
  """Returns a sweep of small runs."""
  overrides = small_runs.overrides(*small_inputs, **settings)
  return sweep_file(sweep, overrides=overrides)


def test_two_arms_of_two_rounds(sweep_file, small_inputs, tmp_path, capsys):
  workdir = tmp_path / 'w'
  file = _sweep(
    sweep_file,
    small_inputs,
    {
      'grid': {'algorithm.name': ['fed_avg', 'fed_fish']},
      'evaluate': [{'barrier': True, **_SIZES}],
    },
    training__num_rounds=2,
    client_splits__held_out_fraction=0.4,
  )
  code = run.run_sweep(main, file, workdir, num_jobs=2)
  assert code == 0, capsys.readouterr()
  corpus = pathlib.Path(small_inputs[0]).name
  rows = []
  for name in ('fed_avg', 'fed_fish'):
    arm = workdir / 'arms' / name
    assert run_directory.read_config(arm).algorithm.name == name
    rows.append(tables.read_metrics(arm / 'metrics.csv'))
    found = results.read_evaluation(arm / 'evaluations' / corpus)
    assert found.summary.checkpoint == {'round': 2}
    assert found.summary.num_clients == 2
    assert len(found.barriers)
  # The same model, clients and data: both see the same first training loss.
  assert [len(arm_rows) for arm_rows in rows] == [3, 3]
  for column, round_num in (('held_out/loss', 0), ('train/num_sequences', 2)):
    assert rows[0][round_num][column] == rows[1][round_num][column]
  assert rows[0][2]['held_out/loss'] != rows[1][2]['held_out/loss']


def test_search_chooses_the_rate_that_learns(
  sweep_file, small_inputs, tmp_path
):
  workdir = tmp_path / 'w'
  file = _sweep(
    sweep_file,
    small_inputs,
    {
      'grid': {'seeds.model_seed': [5]},
      'learning_rate_search': {
        # With the first every client overflows, and the run diverges.
        'settings': {'client_work.learning_rate': [1e30, 0.1]},
        'num_rounds': 2,
        'validation_fraction': 0.3,
        'num_clients': 0,
      },
    },
    training__num_rounds=1,
    training__max_non_finite_rounds=1,
    algorithm__name='fed_avg',
  )
  assert run.run_sweep(main, file, workdir) == 0
  record = json.loads((workdir / 'sweep.json').read_text())
  [choice] = record['learning_rates']
  assert choice['chosen'] == {'client_work.learning_rate': 0.1}
  assert choice['num_validation_clients'] > 0
  assert [entry['score'] is None for entry in record['search_runs']] == [
    True,
    False,
  ]
  config = run_directory.read_config(workdir / 'arms' / 'seed5')
  assert config.client_work.learning_rate == 0.1
  searched = run_directory.read_config(workdir / 'search' / 'client_lr0.1')
  assert searched.client_splits.held_out_fraction == pytest.approx(0.6)
  # Clients that arms are scored on are not read.
  scores = workdir / 'search/client_lr0.1/evaluations/validation/per_client.csv'
  with open(scores, newline='', encoding='utf-8') as rows:
    places = [
      client_splits.split_position(
        text_to_client_id(row['client_id']), split_seed=config.seeds.split_seed
      )
      for row in csv.DictReader(rows)
    ]
  assert config.client_splits.held_out_fraction <= min(places)
  # A run that was started is of the corpus that it was started with.
  path = workdir / 'arms' / 'seed5' / 'corpus.json'
  identity = json.loads(path.read_text()) | {'fingerprint': 'another'}
  path.write_text(json.dumps(identity))
  with pytest.raises(UserError, match="'seed5' was trained on another corpus"):
    run.run_sweep(main, file, workdir)


@pytest.mark.parametrize(
  'settings',
  [
    dict(algorithm__name='fed_fomo', algorithm__num_downloads=2),
    dict(
      client_splits__test_fraction=0.2, client_splits__validation_fraction=0.2
    ),
  ],
  ids=['fed_fomo', 'fed_avg'],
)
def test_a_search_reads_no_row_that_arms_are_scored_on(
  settings, sweep_file, small_inputs, tmp_path, monkeypatch
):
  file = _sweep(
    sweep_file,
    small_inputs,
    {
      'grid': {'seeds.model_seed': [5]},
      'learning_rate_search': {
        'settings': {'client_work.learning_rate': [0.1]},
        'num_rounds': 1,
        'num_clients': 0,
        'validation_fraction': 0.3,
      },
      'evaluate': [{'client_split': 'own_test', 'fractions': [0]}],
    },
    **dict(algorithm__name='fed_avg', training__num_rounds=1) | settings,
  )
  score, scored = evaluator.ClientEvaluator.score, {}

  def recording(self, weights, rows, *arguments):
    for row in rows.batch_features()['x']:
      scored[row.tobytes()] = None
    return score(self, weights, rows, *arguments)

  monkeypatch.setattr(evaluator.ClientEvaluator, 'score', recording)
  [arm] = expand.expand_arms(file, tmp_path)
  [search] = searches.read_searches(file, [arm])
  rows = []
  for one in (*search.runs, arm):
    one.config_path.parent.mkdir(parents=True, exist_ok=True)
    values = load.to_json_dict(one.config)
    one.config_path.write_text(json.dumps(values))
    for command in one.pending_commands():
      assert main(command) == 0
    rows.append(set(scored))
    scored.clear()
  searched, tested = rows
  assert len(searched) > 5 and len(tested) > 5
  assert not searched & tested


def test_stopped_by_a_signal_it_goes_on(sweep_file, small_inputs, tmp_path):
  # Two long runs: the signal comes in the second one.
  settings = small_runs.overrides(
    *small_inputs,
    algorithm__name='fed_avg',
    evaluation__num_clients=0,
    training__num_rounds=60,
    checkpoints__every_num_rounds=0,
  )
  sweep = {'grid': {'seeds.model_seed': [1, 2]}}
  workdir = tmp_path / 'w'
  command = ['sweep', '--config', sweep_file(sweep, overrides=settings).path]
  command += ['--workdir', str(workdir), *settings]
  second = workdir / 'arms' / 'seed2' / 'metrics.csv'
  with open(tmp_path / 'errors.txt', 'w+') as errors:
    process = subprocess.Popen(
      [sys.executable, '-m', 'tff_fedfish', *command],
      cwd=_ROOT,
      env=os.environ | {'PYTHONPATH': str(_ROOT)},
      stdout=errors,
      stderr=errors,
    )
    try:
      deadline = time.monotonic() + 500
      while not second.exists() or second.read_text().count('\n') < 4:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
      process.send_signal(signal.SIGTERM)
      assert process.wait(300) == 143
    finally:
      process.kill()
    errors.seek(0)
    text = errors.read()
  assert 'fedfish: interrupted; the same command continues.' in text
  num_done = second.read_text().count('\n') - 2
  assert 2 <= num_done < 60
  # It was saved on the way out.
  assert (second.parent / 'checkpoints' / f'round_{num_done:08d}').is_dir()
  first = workdir / 'arms' / 'seed1'
  before = {path: path.stat().st_mtime_ns for path in first.rglob('*')}
  assert main(command) == 0
  assert len(tables.read_metrics(second)) == 61
  assert {p: p.stat().st_mtime_ns for p in first.rglob('*')} == before


def test_an_arm_that_diverges(sweep_file, small_inputs, tmp_path, capsys):
  workdir = tmp_path / 'w'
  file = _sweep(
    sweep_file,
    small_inputs,
    {
      'grid': {'server.learning_rate': [1e30, 0.1]},
      'evaluate': [dict(max_clients=2, fractions=[0])],
    },
    server__optimizer='sgd',
    algorithm__name='fed_avg',
    training__num_rounds=6,
    training__max_non_finite_rounds=2,
  )
  assert run.run_sweep(main, file, workdir, num_jobs=2) == 0
  output = capsys.readouterr()
  arm = workdir / 'arms' / 'server_lr1e+30'
  good = arm / 'checkpoints' / 'round_00000000'
  assert (
    f'server_lr1e+30: diverged; its last good checkpoint is {good}\n'
  ) in output.err
  assert f'2 of 2 runs done, 1 of them diverged: {workdir}/arms\n' in output.out
  assert tables.read_metrics(arm / 'metrics.csv')[-1]['round'] == 3
  corpus = pathlib.Path(small_inputs[0]).name
  found = results.read_evaluation(arm / 'evaluations' / corpus)
  assert found.summary.checkpoint == {'round': 0}
  # ln 256 = 5.545: the untrained model.
  [row] = found.summary.fractions
  assert row.loss.mean == pytest.approx(math.log(256), abs=0.2)
  # Nothing is left to do, and nothing is done again.
  before = {path: path.stat().st_mtime_ns for path in arm.rglob('*')}
  assert run.run_sweep(main, file, workdir) == 0
  assert {path: path.stat().st_mtime_ns for path in arm.rglob('*')} == before
  # The report loads both and says which one it is.
  runs = loading.load_runs(sorted((workdir / 'arms').iterdir()))
  assert [run.label.endswith(' (diverged)') for run in runs] == [False, True]
  words = ' '.join(notes.notes(scores.read_scores(runs)))
  assert 'diverged and stopped after round 3 of 6' in words


def test_an_arm_with_personal_models_that_diverges(
  sweep_file, small_inputs, tmp_path, capsys
):
  workdir = tmp_path / 'w'
  file = _sweep(
    sweep_file,
    small_inputs,
    {'grid': {'client_work.learning_rate': [1e30]}, 'evaluate': [{}]},
    algorithm__name='fed_fomo',
    algorithm__num_downloads=2,
    training__num_rounds=6,
    training__max_non_finite_rounds=2,
  )
  code = run.run_sweep(main, file, workdir)
  assert code == 0, capsys.readouterr().err
  assert '1 of 1 runs done, 1 of them diverged' in capsys.readouterr().out
