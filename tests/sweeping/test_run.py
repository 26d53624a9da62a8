"""Sweeps: runs, skips, choices and reports; runs take no time here.

Every job's commands are read and carried out by a stand-in that writes what
`fedfish train` and `fedfish evaluate` would leave. test_sweep_end_to_end.py has
the real ones.
"""

import argparse
import functools
import json
import math
import os
import pathlib

import pytest

from tff_fedfish import files
from tff_fedfish.cli.main import main
from tff_fedfish.config import load as config_loading
from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results
from tff_fedfish.run import run_directory, run_inputs
from tff_fedfish.sweeping import jobs, run

_CLIENTS = [f'client {i}'.encode() for i in range(40)]
_SWEEP = {
  'grid': {
    'algorithm.name': ['fed_avg', 'fed_fish'],
    'seeds.model_seed': [1, 2],
  },
  'evaluate': [{}, {'name': 'again'}],
}
_ARMS = ['fed_avg-seed1', 'fed_fish-seed1', 'fed_avg-seed2', 'fed_fish-seed2']


class _Stand:
  """In place of `jobs.run_jobs`.

  Attributes:
    started: Jobs that ran, in order.
    commands: Their commands.
    failing: Jobs that end with exit code 2.
    stop_before: The job before whose start a SIGTERM comes; None: none.
    loss: Of a held-out client, from the run's config and whether the sweep's
      arms hold the client out.
  """

  def __init__(self):
    self.started = []
    self.commands = []
    self.failing = set()
    self.stop_before = None
    self.loss = lambda config, is_held_out_by_arms: 5.0
    self.num_at_a_time = []

  def run_jobs(self, run_command, jobs, num_at_a_time, on_tick, on_end):
    self.num_at_a_time.append(num_at_a_time)
    ended = set()
    for job in jobs:
      if job.name == self.stop_before:
        return 143
      on_tick({job.name}, set(ended))
      self.started.append(job.name)
      code = self._carry_out(job)
      ended.add(job.name)
      on_end(job, code)
      on_tick(set(), set(ended))
    return 0

  def _carry_out(self, job):
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.log.write_text('first line\nlast line\n')
    if job.name in self.failing:
      return 2
    for command in job.pending_commands():
      self.commands.append(command)
      if command[0] == 'train':
        self._train(command)
      else:
        self._evaluate(command)
    return 0

  def _train(self, command):
    _, _, config_path, _, workdir = command
    config = config_loading.load_config(config_path)
    workdir = pathlib.Path(workdir)
    num_rounds = config.training.num_rounds
    for round_num in (num_rounds // 2, num_rounds):
      path = workdir / 'checkpoints' / f'round_{round_num:08d}'
      path.mkdir(parents=True, exist_ok=True)
    files.write_json(
      workdir / 'config.json', config_loading.to_json_dict(config)
    )

  def _evaluate(self, command):
    parser = argparse.ArgumentParser()
    for option in ('--checkpoint', '--data', '--output', '--max_clients'):
      parser.add_argument(option)
    arguments, _ = parser.parse_known_args(command)
    checkpoint = pathlib.Path(arguments.checkpoint)
    assert checkpoint.is_dir()
    config = run_directory.read_config(checkpoint.parents[1])
    clients = [
      results.ClientEvaluation(
        client_id=client_id,
        fraction=0.0,
        num_evaluation_sequences=2,
        num_evaluation_tokens=16,
        num_personalization_sequences=0,
        loss_before=loss,
        accuracy_before=0.5,
        loss_after=loss,
        accuracy_after=0.5,
      )
      for client_id in _split(config.client_splits.held_out_fraction)
      for loss in [self.loss(config, client_id in _split(0.5))]
    ]
    output = pathlib.Path(arguments.output)
    summary = results.summarize_evaluation(
      clients,
      kind='held_out',
      corpus='c',
      checkpoint={'round': 0},
      personalization={},
      skipped_clients={},
    )
    results.write_evaluation(output, summary, clients)


@functools.cache
def _split(fraction):
  split = client_splits.split_clients(
    _CLIENTS, split_seed=3, held_out_fraction=fraction
  )
  return tuple(split.held_out)


@pytest.fixture
def stand(monkeypatch):
  stand = _Stand()
  monkeypatch.setattr(jobs, 'run_jobs', stand.run_jobs)
  # In a process of its own; tests/training/test_run_checks.py has it for real.
  monkeypatch.setattr(run, '_require_runs', lambda configs: None)
  monkeypatch.setattr(run_inputs, 'open_corpus', lambda config, path: None)
  # Nobody pulls the plug here, and a disk takes its time.
  monkeypatch.setattr(os, 'fsync', lambda descriptor: None)
  return stand


def _statuses(workdir, kind='arms'):
  entries = json.loads((workdir / 'sweep.json').read_text())[kind]
  return {entry['name']: entry['status'] for entry in entries}


def test_every_arm_is_trained_and_evaluated(
  sweep_file, stand, tmp_path, capsys
):
  workdir = tmp_path / 'w'
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  assert stand.started == _ARMS
  for name in _ARMS:
    directory = workdir / 'arms' / name
    config = run_directory.read_config(directory)
    assert f'{config.algorithm.name}-seed{config.seeds.model_seed}' == name
    evaluations = {path.name for path in (directory / 'evaluations').iterdir()}
    assert evaluations == {'debian_descriptions', 'again'}
  rounds = [
    pathlib.Path(command[2]).name
    for command in stand.commands
    if command[0] == 'evaluate'
  ]
  # The base has 30 rounds.
  assert rounds == ['round_00000030'] * 8
  assert _statuses(workdir) == dict.fromkeys(_ARMS, 'done')
  output = capsys.readouterr()
  assert output.out == (
    f'4 of 4 runs done: {workdir}/arms\n'
    f'On one page: fedfish report --runs {workdir}/arms/* --output DIR\n'
  )
  assert output.err.splitlines()[:2] == [
    'fed_avg-seed1: training',
    'fed_avg-seed1: ended',
  ]


def test_second_start_does_nothing(sweep_file, stand, tmp_path):
  workdir = tmp_path / 'w'
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  stand.started.clear()
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  assert stand.started == []
  assert _statuses(workdir) == dict.fromkeys(_ARMS, 'done')


def test_stopped_between_arms_it_does_what_is_left(
  sweep_file, stand, tmp_path, capsys
):
  workdir = tmp_path / 'w'
  stand.stop_before = 'fed_avg-seed2'
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 143
  assert stand.started == _ARMS[:2]
  assert 'interrupted; the same command continues.' in capsys.readouterr().err
  assert _statuses(workdir) == {
    'fed_avg-seed1': 'done',
    'fed_fish-seed1': 'done',
    'fed_avg-seed2': 'waiting',
    'fed_fish-seed2': 'waiting',
  }
  stand.stop_before = None
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  assert stand.started == _ARMS


def test_stopped_before_its_first_run(sweep_file, stand, tmp_path):
  stand.stop_before = _ARMS[0]
  assert run.run_sweep(main, sweep_file(_SWEEP), tmp_path / 'w') == 143


def test_values_added_to_the_grid_are_run(sweep_file, stand, tmp_path):
  workdir = tmp_path / 'w'
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  stand.started.clear()
  grid = {
    'algorithm.name': ['fed_avg', 'fed_fish'],
    'seeds.model_seed': [0, 1, 2],
  }
  assert run.run_sweep(main, sweep_file({**_SWEEP, 'grid': grid}), workdir) == 0
  assert stand.started == ['fed_avg-seed0', 'fed_fish-seed0']
  assert len(_statuses(workdir)) == 6


def test_failing_arm_is_reported_and_the_others_go_on(
  sweep_file, stand, tmp_path, capsys
):
  workdir = tmp_path / 'w'
  stand.failing = {'fed_fish-seed1'}
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 1
  assert stand.started == _ARMS
  output = capsys.readouterr()
  assert (
    'fedfish: error: the run fed_fish-seed1 ended with exit code 2: last line '
    f'(all of its output: {workdir}/logs/fed_fish-seed1.log)\n'
  ) in output.err
  assert '3 of 4 runs done, 1 failed: ' in output.out
  assert _statuses(workdir)['fed_fish-seed1'] == 'failed'
  assert _statuses(workdir)['fed_fish-seed2'] == 'done'
  # The next start tries it again.
  stand.failing, stand.started = set(), []
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  assert stand.started == ['fed_fish-seed1']


def test_evaluation_that_is_missing_is_made(sweep_file, stand, tmp_path):
  workdir = tmp_path / 'w'
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  output = workdir / 'arms' / _ARMS[2] / 'evaluations' / 'debian_descriptions'
  output.rename(tmp_path / 'away')
  stand.started, stand.commands = [], []
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  assert stand.started == [_ARMS[2]]
  assert [command[0] for command in stand.commands] == ['train', 'evaluate']


def test_runs_are_as_the_file_was_at_the_start(sweep_file, stand, tmp_path):
  file = sweep_file(_SWEEP)
  pathlib.Path(file.path).write_text('raise SystemExit("edited")')
  assert run.run_sweep(main, file, tmp_path / 'w') == 0


class TestSearch:
  _SEARCHED = {
    **_SWEEP,
    'learning_rate_search': {
      'settings': {'client_work.learning_rate': [0.25, 0.5, 1.0]},
      'num_rounds': 4,
      'per': ['algorithm.name'],
      'validation_fraction': 0.25,
      'num_clients': 0,
    },
  }
  _BASE = ('config.client_splits = dict(held_out_fraction=0.5)',)

  def _loss(self, config, is_held_out_by_arms):
    rate = config.client_work.learning_rate
    if is_held_out_by_arms:
      # Who chose by these would always choose 0.25.
      return rate
    best = {'fed_avg': 0.5, 'fed_fish': 1.0}[config.algorithm.name]
    return 5.0 + abs(rate - best)

  def test_arms_have_the_rates_of_validation_clients(
    self, sweep_file, stand, tmp_path, capsys
  ):
    workdir = tmp_path / 'w'
    stand.loss = self._loss
    file = sweep_file(self._SEARCHED, *self._BASE)
    assert run.run_sweep(main, file, workdir) == 0
    searched = [name for name in stand.started if name.startswith('search/')]
    assert stand.started == searched + _ARMS
    assert searched == [
      f'search/{algorithm}-client_lr{rate}'
      for algorithm in ('fed_avg', 'fed_fish')
      for rate in (0.25, 0.5, 1.0)
    ]
    for name in _ARMS:
      config = run_directory.read_config(workdir / 'arms' / name)
      expected = 0.5 if name.startswith('fed_avg') else 1.0
      assert config.client_work.learning_rate == expected
      assert config.client_splits.held_out_fraction == 0.5
      assert config.training.num_rounds == 30
    values = json.loads((workdir / 'sweep.json').read_text())
    # Places in [0, 1) are fixed: those in [0.5, 0.75).
    num_clients = len(_split(0.75)) - len(_split(0.5))
    assert num_clients > 0
    assert values['learning_rates'] == [
      {
        'for': {'algorithm.name': algorithm},
        'chosen': {'client_work.learning_rate': rate},
        'metric': 'held-out loss',
        'score': 5.0,
        'num_validation_clients': num_clients,
        'at_edge': edges,
      }
      for algorithm, rate, edges in (
        ('fed_avg', 0.5, []),
        ('fed_fish', 1.0, ['client_work.learning_rate']),
      )
    ]
    # fed_avg: |0.25 - 0.5|, 0, |1 - 0.5|; fed_fish: 0.75, 0.5, 0.
    scores = [entry['score'] for entry in values['search_runs']]
    assert scores == [5.25, 5.0, 5.5, 5.75, 5.5, 5.0]
    assert values['arms'][0]['settings']['client_work.learning_rate'] == 0.5
    errors = capsys.readouterr().err
    assert (
      'Chosen for fed_avg: client_work.learning_rate 0.5 (held-out loss 5.0000 '
      f'over {num_clients} validation clients).\n'
    ) in errors
    assert 'At the edge of what was tried: client_work.learning_rate;' in errors
    # The second start has nothing to do and says the same.
    stand.started.clear()
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started == []
    assert json.loads((workdir / 'sweep.json').read_text()) == values

  def test_search_that_is_not_whole_is_no_choice(
    self, sweep_file, stand, tmp_path, capsys
  ):
    workdir = tmp_path / 'w'
    stand.loss = self._loss
    stand.failing = {'search/fed_avg-client_lr1.0'}
    file = sweep_file(self._SEARCHED, *self._BASE)
    assert run.run_sweep(main, file, workdir) == 1
    assert stand.started[-2:] == ['fed_fish-seed1', 'fed_fish-seed2']
    assert len(stand.started) == 6 + 2
    output = capsys.readouterr()
    assert (
      'fedfish: error: 2 runs, such as fed_avg-seed1, have no learning rates: '
      'the run search/fed_avg-client_lr1.0 did not end well.\n'
    ) in output.err
    assert '2 of 4 runs done, 2 failed: ' in output.out
    assert _statuses(workdir)['fed_avg-seed1'] == 'failed'
    statuses = _statuses(workdir, 'search_runs')
    assert statuses['fed_avg-client_lr1.0'] == 'failed'

  def test_diverged_runs_are_not_chosen(
    self, sweep_file, stand, tmp_path, capsys
  ):
    def loss(config, is_held_out_by_arms):
      rate = config.client_work.learning_rate
      diverges = config.algorithm.name == 'fed_avg' or rate < 1.0
      return math.nan if diverges else 7.0

    stand.loss = loss
    workdir = tmp_path / 'w'
    assert (
      run.run_sweep(main, sweep_file(self._SEARCHED, *self._BASE), workdir) == 1
    )
    assert stand.started[-2:] == ['fed_fish-seed1', 'fed_fish-seed2']
    config = run_directory.read_config(workdir / 'arms' / 'fed_fish-seed1')
    assert config.client_work.learning_rate == 1.0
    assert (
      'have no learning rates: no run of its search has a finite score.'
    ) in capsys.readouterr().err

  def test_a_method_without_what_is_searched(self, sweep_file, stand, tmp_path):
    workdir = tmp_path / 'w'
    stand.loss = lambda config, _: abs(config.algorithm.mu - 1.0)
    searched = self._SEARCHED['learning_rate_search']
    file = sweep_file(
      {
        'grid': {'algorithm.name': ['fed_avg', 'fed_prox']},
        'learning_rate_search': searched
        | {'settings': {'algorithm.mu': [0.5, 1.0, 2.0]}},
      },
      *self._BASE,
      'config.algorithm = dict(name="fed_avg")',
    )
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started == [
      *(f'search/fed_prox-mu{mu}' for mu in (0.5, 1.0, 2.0)),
      'fed_avg',
      'fed_prox',
    ]
    config = run_directory.read_config(workdir / 'arms' / 'fed_prox')
    assert config.algorithm.mu == 1.0
    values = json.loads((workdir / 'sweep.json').read_text())
    (choice,) = values['learning_rates']
    assert choice['chosen'] == {'algorithm.mu': 1.0}
    assert values['arms'][0]['settings'] == {'algorithm.name': 'fed_avg'}

  def test_search_goes_on_beyond_an_edge(self, sweep_file, stand, tmp_path):
    workdir = tmp_path / 'w'
    best = {'fed_avg': 0.5, 'fed_fish': 2.0}
    stand.loss = lambda config, _: (
      5.0 + abs(config.client_work.learning_rate - best[config.algorithm.name])
    )
    search = self._SEARCHED['learning_rate_search'] | {'max_extensions': 3}
    searched = self._SEARCHED | {'learning_rate_search': search}
    file = sweep_file(searched, *self._BASE)
    # The one beyond the edge is no worse than stopped before.
    stand.stop_before = 'search/fed_fish-client_lr4.0'
    assert run.run_sweep(main, file, workdir) == 143
    stand.stop_before = None
    assert run.run_sweep(main, file, workdir) == 0
    names = [name for name in stand.started if name.startswith('search/')]
    assert names[6:] == [
      'search/fed_fish-client_lr2.0',
      'search/fed_fish-client_lr4.0',
    ]
    config = run_directory.read_config(workdir / 'arms' / 'fed_fish-seed1')
    assert config.client_work.learning_rate == 2.0
    values = json.loads((workdir / 'sweep.json').read_text())
    assert len(values['search_runs']) == 8
    assert [c['at_edge'] for c in values['learning_rates']] == [[], []]
    stand.started.clear()
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started == []
    assert json.loads((workdir / 'sweep.json').read_text()) == values

  def test_stopped_in_the_search(self, sweep_file, stand, tmp_path):
    workdir = tmp_path / 'w'
    stand.loss = self._loss
    stand.stop_before = 'search/fed_fish-client_lr0.5'
    file = sweep_file(self._SEARCHED, *self._BASE)
    assert run.run_sweep(main, file, workdir) == 143
    assert len(stand.started) == 4
    stand.stop_before = None
    assert run.run_sweep(main, file, workdir) == 0
    assert len(stand.started) == len(set(stand.started)) == 6 + 4

  def test_how_search_runs_are_evaluated(self, sweep_file, stand, tmp_path):
    stand.loss = self._loss
    search = {**self._SEARCHED['learning_rate_search'], 'num_clients': 6}
    file = sweep_file(
      {**self._SEARCHED, 'learning_rate_search': search}, *self._BASE
    )
    assert run.run_sweep(main, file, tmp_path / 'w') == 0
    command = next(c for c in stand.commands if c[0] == 'evaluate')
    assert command[7:] == [
      '--fractions=0.0',
      # v / (f + v) = 0.25 / 0.75: of 18 some 6.
      '--max_clients=18',
      '--max_sequences_per_client=16',
    ]
    assert command[2].endswith(
      'w/search/fed_avg-client_lr0.25/checkpoints/round_00000004'
    )


class TestErrors:
  def test_number_of_jobs(self, sweep_file, stand, tmp_path):
    with pytest.raises(UserError, match='`--jobs` must be at least 1, found 0'):
      run.run_sweep(main, sweep_file(_SWEEP), tmp_path / 'w', num_jobs=0)

  def test_memory(self, sweep_file, stand, tmp_path, monkeypatch):
    from tff_fedfish import environment

    monkeypatch.setattr(
      environment, 'memory_bytes', lambda: {'total': 1, 'available': 1}
    )
    file = sweep_file(_SWEEP)
    with pytest.raises(UserError, match='`--jobs` is 3, but 3 runs at once'):
      run.run_sweep(main, file, tmp_path / 'w', num_jobs=3)
    assert not (tmp_path / 'w').exists()
    assert run.run_sweep(main, file, tmp_path / 'w', num_jobs=1) == 0
    # What is done needs no memory.
    assert run.run_sweep(main, file, tmp_path / 'w', num_jobs=3) == 0

  def test_jobs_at_a_time(self, sweep_file, stand, tmp_path, monkeypatch):
    monkeypatch.setattr(run, 'require_memory', lambda configs, num_jobs: None)
    assert (
      run.run_sweep(main, sweep_file(_SWEEP), tmp_path / 'a', num_jobs=3) == 0
    )
    assert (
      run.run_sweep(main, sweep_file(_SWEEP), tmp_path / 'b', num_jobs=9) == 0
    )
    assert stand.num_at_a_time == [3, 4]

  def test_directory_of_something_else(self, sweep_file, stand, tmp_path):
    (tmp_path / 'w').mkdir()
    (tmp_path / 'w' / 'notes').touch()
    with pytest.raises(UserError, match="or hold sweep.json, but .*'notes'"):
      run.run_sweep(main, sweep_file(_SWEEP), tmp_path / 'w')

  def test_another_sweep_leaves_it_alone(self, sweep_file, stand, tmp_path):
    workdir = tmp_path / 'w'
    assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
    before = (workdir / 'sweep.json').read_bytes()
    with pytest.raises(UserError, match='holds a sweep that differs from'):
      run.run_sweep(main, sweep_file({**_SWEEP, 'evaluate': []}), workdir)
    assert (workdir / 'sweep.json').read_bytes() == before

  def test_workdir_in_use(self, sweep_file, stand, tmp_path):
    (tmp_path / 'w').mkdir()
    with run_directory.lock(tmp_path / 'w'):
      with pytest.raises(UserError, match='in use by another `fedfish sweep`'):
        run.run_sweep(main, sweep_file(_SWEEP), tmp_path / 'w')

  def test_corpus_that_is_not_there(self, sweep_file, tmp_path, monkeypatch):
    # Before a day of training, and before anything is written.
    sweep = {**_SWEEP, 'evaluate': [{'data': str(tmp_path / 'nowhere')}]}
    with pytest.raises(UserError, match='runs/demo/corpora/debian_desc'):
      run.run_sweep(main, sweep_file(sweep), tmp_path / 'w')
    monkeypatch.setattr(run, '_require_runs', lambda configs: None)
    with pytest.raises(UserError, match='nowhere'):
      run.run_sweep(main, sweep_file(sweep), tmp_path / 'w')
    assert not (tmp_path / 'w').exists()
