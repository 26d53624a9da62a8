"""Whole sweeps of tiny runs."""

import csv
import json
import math
import pathlib

import pytest
import small_runs

from tff_fedfish.cli.main import main
from tff_fedfish.config import load
from tff_fedfish.data import client_splits
from tff_fedfish.data.client_ids import text_to_client_id
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import evaluator, results, statistics
from tff_fedfish.reporting import findings, loading, notes
from tff_fedfish.run import run_directory, tables
from tff_fedfish.sweeping import expand, jobs, run, searches

# Every test here trains several models.
pytestmark = pytest.mark.slow


@pytest.fixture
def in_process(monkeypatch):
  """Runs come one after the other in this process, and share what is built."""

  def run_jobs(run_command, runs, num_at_a_time, on_start, on_end, _):
    for one in runs:
      on_start(one)
      train, *evaluations = one.pending_commands()
      code = run_command(train)
      if not code or one.diverged_checkpoint():
        code = max(map(run_command, evaluations), default=0)
      on_end(one, code)
    return 0

  monkeypatch.setattr(jobs, 'run_jobs', run_jobs)
  monkeypatch.setattr(run, '_require_runs', lambda configs: None)


def _sweep(sweep_file, small_inputs, sweep, **settings):
  """Returns a sweep of small runs."""
  overrides = small_runs.overrides(*small_inputs, **settings)
  return sweep_file(sweep, overrides=overrides)


def test_two_arms_in_processes_of_their_own(
  sweep_file, small_inputs, tmp_path, capsys
):
  workdir = tmp_path / 'w'
  settings = small_runs.overrides(
    *small_inputs,
    training__num_rounds=2,
    client_splits__held_out_fraction=0.4,
  )
  sweep = {'grid': {'algorithm.name': ['fed_avg', 'fed_fish']}}
  path = sweep_file(sweep, overrides=settings).path
  command = ['sweep', '--config', path, '--workdir', str(workdir)]
  code = main([*command, '--jobs', '2', *settings])
  assert code == 0, capsys.readouterr()
  rows = []
  for name in ('fed_avg', 'fed_fish'):
    arm = workdir / 'arms' / name
    assert run_directory.read_config(arm).algorithm.name == name
    rows.append(tables.read_metrics(arm / 'metrics.csv'))
  # The same model, clients and data: both see the same first training loss.
  assert [len(arm_rows) for arm_rows in rows] == [3, 3]
  for column, round_num in (('held_out/loss', 0), ('train/num_sequences', 2)):
    assert rows[0][round_num][column] == rows[1][round_num][column]
  assert rows[0][2]['held_out/loss'] != rows[1][2]['held_out/loss']


def test_search_chooses_the_rate_that_learns(
  in_process, sweep_file, small_inputs, tmp_path
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
  [arm] = loading.load_runs([workdir])
  assert arm.search == (2, choice['num_validation_clients'])
  config = arm.train_config
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


def test_an_arm_that_diverges(
  in_process, sweep_file, small_inputs, tmp_path, capsys
):
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
  assert run.run_sweep(main, file, workdir) == 0
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
  [row] = statistics.fraction_scores(found.clients)
  assert row.loss.mean == pytest.approx(math.log(256), abs=0.2)
  # Nothing is left to do, and nothing is done again.
  before = {path: path.stat().st_mtime_ns for path in arm.rglob('*')}
  assert run.run_sweep(main, file, workdir) == 0
  assert {path: path.stat().st_mtime_ns for path in arm.rglob('*')} == before
  # The report loads both and says which one it is.
  runs = loading.load_runs(sorted((workdir / 'arms').iterdir()))
  assert [run.label.endswith(' (diverged)') for run in runs] == [False, True]
  words = ' '.join(notes.notes(findings.read_findings(runs)))
  assert 'diverged and stopped after round 3 of 6' in words


def test_an_arm_with_personal_models_that_diverges(
  in_process, sweep_file, small_inputs, tmp_path, capsys
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
