"""Sweeps: runs, skips, choices and reports; runs take no time here.

Every run's commands are read and carried out by a stand-in that writes what
`fedfish train` and `fedfish evaluate` would leave. test_end_to_end.py has the
real ones.
"""

import argparse
import functools
import json
import math
import os
import pathlib

import pytest

from tff_fedfish import environment, files
from tff_fedfish.cli.main import main
from tff_fedfish.config import load
from tff_fedfish.data import client_splits
from tff_fedfish.errors import UserError
from tff_fedfish.evaluation import results
from tff_fedfish.evaluation.summary import Summary
from tff_fedfish.evaluation.tables import ClientEvaluation
from tff_fedfish.planning import memory
from tff_fedfish.run import client_data, run_directory
from tff_fedfish.run.corpus_identity import CorpusIdentity
from tff_fedfish.sweeping import dry_run, jobs, run

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
    started: Names of runs that started, in order.
    commands: Their commands.
    failing: Names of runs that end with exit code 2.
    diverging: Names of runs that diverge in the second half.
    stop_before: Name of the run before whose start a SIGTERM comes.
    loss: Of a held-out client, from the run's config and whether the sweep's
      arms hold the client out.
  """

  def __init__(self):
    self.started, self.commands, self.num_at_a_time = [], [], []
    self.failing, self.diverging, self.stop_before = set(), set(), None
    self.loss = lambda config, is_held_out_by_arms: 5.0

  def run_jobs(self, run_command, runs, num_at_a_time, on_start, on_end, _):
    self.num_at_a_time.append(num_at_a_time)
    for one in runs:
      if one.name == self.stop_before:
        return 143
      on_start(one)
      self.started.append(one.name)
      on_end(one, self._carry_out(one))
    return 0

  def _carry_out(self, one):
    one.log.parent.mkdir(parents=True, exist_ok=True)
    one.log.write_text('first line\nlast line\n\n')
    if one.name in self.failing:
      return 2
    for command in one.pending_commands():
      self.commands.append(command)
      if command[0] == 'train':
        self._train(command, one.name in self.diverging)
      else:
        self._evaluate(command)
    return 0

  def _train(self, command, diverges):
    _, _, config_path, _, workdir, *_ = command
    values = json.loads(pathlib.Path(config_path).read_text())
    config = load.from_json_dict(values, config_path)
    workdir, num_rounds = pathlib.Path(workdir), config.training.num_rounds
    rounds = (0, num_rounds // 2, num_rounds - diverges)
    for round_num in rounds:
      path = workdir / 'checkpoints' / f'round_{round_num:08d}'
      path.mkdir(parents=True, exist_ok=True)
    files.write_json(workdir / 'config.json', load.to_json_dict(config))
    limit = config.training.max_non_finite_rounds
    rows = [
      f'{r},4,{4 * (diverges and r > rounds[-1] - limit)}\n'
      for r in range(rounds[-1] + 1)
    ]
    header = 'round,train/num_clients,train/num_non_finite_clients\n'
    (workdir / 'metrics.csv').write_text(header + ''.join(rows))

  def _evaluate(self, command):
    parser = argparse.ArgumentParser()
    for option in ('--checkpoint', '--data', '--output'):
      parser.add_argument(option)
    parser.add_argument('--held_out_from', type=float, default=0.0)
    arguments, _ = parser.parse_known_args(command)
    config = run_directory.read_config(arguments.checkpoint)
    clients = [
      ClientEvaluation(
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
      if client_id not in _split(arguments.held_out_from)
      for loss in [self.loss(config, client_id in _split(0.5))]
    ]
    summary = Summary(
      num_clients=len(clients),
      kind='held_out',
      corpus='c',
      corpus_identity=CorpusIdentity(
        name='c', key=None, part=None, grouping='g', fingerprint='f'
      ),
      checkpoint={'round': 0},
      unknown_token_fraction=None,
      personalization={},
      skipped_clients={},
    )
    results.write_evaluation(pathlib.Path(arguments.output), summary, clients)


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
  # In a process of its own; tests/training/test_check.py has it for real.
  monkeypatch.setattr(run, '_require_runs', lambda configs: None)
  monkeypatch.setattr(client_data, 'open_corpus', lambda config, path: None)
  # Nobody pulls the plug here, and a disk takes its time.
  monkeypatch.setattr(os, 'fsync', lambda descriptor: None)
  return stand


def _record(workdir):
  return json.loads((workdir / 'sweep.json').read_text())


def test_every_arm_is_trained_and_evaluated(
  sweep_file, stand, tmp_path, capsys
):
  workdir, file = tmp_path / 'w', sweep_file(_SWEEP)
  options = ['--tracker=mlflow']
  assert run.run_sweep(main, file, workdir, train_options=options) == 0
  assert stand.started == _ARMS
  for name in _ARMS:
    directory = workdir / 'arms' / name
    config = run_directory.read_config(directory)
    assert f'{config.algorithm.name}-seed{config.seeds.model_seed}' == name
    evaluations = {path.name for path in (directory / 'evaluations').iterdir()}
    assert evaluations == {'debian_descriptions', 'again'}
  assert stand.commands[0][-1] == '--tracker=mlflow'
  assert stand.commands[1][2] == str(workdir / 'arms' / _ARMS[0])
  output = capsys.readouterr()
  assert output.out == (
    f'4 of 4 runs done: {workdir}/arms\n'
    f'On one page: fedfish report --runs {workdir} --output DIR\n'
  )
  assert output.err.splitlines()[:2] == [
    'fed_avg-seed1: started',
    'fed_avg-seed1: done',
  ]
  record = _record(workdir)
  assert record['grid'] == _SWEEP['grid']
  assert record['arms'][1] == {
    'name': 'fed_fish-seed1',
    'settings': {'seeds.model_seed': 1, 'algorithm.name': 'fed_fish'},
    'num_rounds': 30,
    'directory': 'arms/fed_fish-seed1',
    'budgets': ['fixed_rounds'],
  }
  # Nothing is left.
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  assert stand.started == _ARMS


def test_stopped_between_arms_it_does_what_is_left(
  sweep_file, stand, tmp_path, capsys
):
  workdir, file = tmp_path / 'w', sweep_file(_SWEEP)
  stand.stop_before = 'fed_avg-seed2'
  assert run.run_sweep(main, file, workdir) == 143
  assert stand.started == _ARMS[:2]
  assert 'interrupted; the same command continues.' in capsys.readouterr().err
  # An evaluation that is missing is made.
  evaluation = workdir / 'arms' / 'fed_avg-seed1' / 'evaluations' / 'again'
  evaluation.rename(tmp_path / 'aside')
  dry_run.print_sweep(file, workdir)
  rows = [line.split() for line in capsys.readouterr().out.splitlines()]
  status = {row[0]: row[5:-1] for row in rows if row and row[0] in _ARMS}
  assert list(status.values()) == [['after', 'round', '30'], ['done']] + 2 * [
    ['new']
  ]
  stand.stop_before, stand.started = None, []
  assert run.run_sweep(main, file, workdir) == 0
  assert stand.started == [_ARMS[0], *_ARMS[2:]]
  assert evaluation.exists()


def test_the_last_runs_have_as_many_threads(sweep_file, stand, tmp_path):
  workdir, file = tmp_path / 'w', sweep_file(_SWEEP)
  stand.stop_before = _ARMS[-1]
  assert run.run_sweep(main, file, workdir, num_jobs=2) == 143
  stand.stop_before = None
  assert run.run_sweep(main, file, workdir, num_jobs=2) == 0
  # One run was left: it does not get both runs' part of the cores.
  assert stand.num_at_a_time == [2, 2]


def test_values_added_to_the_grid_are_run(sweep_file, stand, tmp_path):
  workdir = tmp_path / 'w'
  assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
  stand.started.clear()
  grid = _SWEEP['grid'] | {'seeds.model_seed': [0, 1, 2]}
  assert run.run_sweep(main, sweep_file({**_SWEEP, 'grid': grid}), workdir) == 0
  assert stand.started == ['fed_avg-seed0', 'fed_fish-seed0']
  assert len(_record(workdir)['arms']) == 6


def test_a_failing_arm_is_reported_and_the_others_go_on(
  sweep_file, stand, tmp_path, capsys
):
  workdir, file = tmp_path / 'w', sweep_file(_SWEEP)
  stand.failing = {'fed_fish-seed1'}
  assert run.run_sweep(main, file, workdir) == 1
  assert stand.started == _ARMS
  output = capsys.readouterr()
  assert (
    'fedfish: error: the run fed_fish-seed1 ended with exit code 2: last line '
    f'(all of its output: {workdir}/logs/fed_fish-seed1.log)\n'
  ) in output.err
  assert '3 of 4 runs done, 1 failed: ' in output.out
  # The next start tries it again.
  stand.failing, stand.started = set(), []
  assert run.run_sweep(main, file, workdir) == 0
  assert stand.started == ['fed_fish-seed1']


def test_a_diverged_arm_is_done(sweep_file, stand, tmp_path, capsys):
  workdir = tmp_path / 'w'
  limit = '--config.training.max_non_finite_rounds=3'
  file = sweep_file(_SWEEP, overrides=[limit])
  stand.diverging = {'fed_fish-seed1'}
  assert run.run_sweep(main, file, workdir) == 0
  output = capsys.readouterr()
  # Rounds 27 to 29 are not finite; round 15 is saved.
  good = workdir / 'arms' / 'fed_fish-seed1' / 'checkpoints' / 'round_00000015'
  line = f'fed_fish-seed1: diverged; its last good checkpoint is {good}'
  assert line in output.err.splitlines()
  assert '4 of 4 runs done, 1 of them diverged: ' in output.out
  dry_run.print_sweep(file, workdir)
  assert capsys.readouterr().out.count(' diverged ') == 1
  assert run.run_sweep(main, file, workdir) == 0
  assert stand.started == _ARMS


class TestSearch:
  _BASE = (
    'config.client_splits = dict(held_out_fraction=0.5)',
    'config.seeds = dict(split_seed=3)',
  )
  _SEARCHED = {
    'grid': _SWEEP['grid'],
    'learning_rate_search': {
      'settings': {'client_work.learning_rate': [0.25, 0.5, 1.0]},
      'num_rounds': 4,
      'per': ['algorithm.name'],
      'validation_fraction': 0.25,
      'num_clients': 0,
    },
  }

  @staticmethod
  def _loss(config, is_held_out_by_arms):
    """Is lowest at 0.5 for FedAvg, at 0.25 for FedFish; misleads elsewhere."""
    best = {'fed_avg': 0.5, 'fed_fish': 0.25}[config.algorithm.name]
    distance = abs(config.client_work.learning_rate - best)
    return 100 - distance if is_held_out_by_arms else 5 + distance

  def test_arms_get_the_rates_of_their_group(
    self, sweep_file, stand, tmp_path, capsys
  ):
    workdir, file = tmp_path / 'w', sweep_file(self._SEARCHED, *self._BASE)
    stand.loss = self._loss
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started == [
      *(
        f'search/{name}-client_lr{rate}'
        for name in ('fed_avg', 'fed_fish')
        for rate in (0.25, 0.5, 1.0)
      ),
      *_ARMS,
    ]
    for name, rate in (('fed_avg', 0.5), ('fed_fish', 0.25)):
      for seed in (1, 2):
        arm = workdir / 'arms' / f'{name}-seed{seed}'
        config = run_directory.read_config(arm)
        assert config.client_work.learning_rate == rate
        assert config.client_splits.held_out_fraction == 0.5
    num_clients = len(set(_split(0.75)) - set(_split(0.5)))
    lines = capsys.readouterr().err.splitlines()
    assert (
      'Chosen for fed_avg: client_work.learning_rate 0.5 (held-out loss 5.0000 '
      f'over {num_clients} validation clients).'
    ) in lines
    record = _record(workdir)
    assert record['learning_rates'][1] == {
      'for': {'algorithm.name': 'fed_fish'},
      'chosen': {'client_work.learning_rate': 0.25},
      'metric': 'held-out loss',
      'score': 5.0,
      'num_validation_clients': num_clients,
      'at_edge': ['client_work.learning_rate'],
    }
    assert [entry['score'] for entry in record['search_runs']] == [
      *(5.25, 5.0, 5.5, 5.0, 5.25, 5.75)
    ]
    settings = {'seeds.model_seed': 1, 'algorithm.name': 'fed_avg'}
    rates = {'client_work.learning_rate': 0.5}
    assert record['arms'][0]['settings'] == settings | rates
    # The next start does nothing; a start that is killed early, as this one
    # before its first run, has lost nothing of what was chosen.
    stand.started.clear()
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started == [] and _record(workdir) == record
    grid = self._SEARCHED['grid'] | {'seeds.model_seed': [0, 1, 2]}
    more = sweep_file({**self._SEARCHED, 'grid': grid}, *self._BASE)
    stand.stop_before = 'fed_avg-seed0'
    assert run.run_sweep(main, more, workdir) == 143
    assert _record(workdir)['learning_rates'] == record['learning_rates']

  def test_search_that_is_not_whole_is_no_choice(
    self, sweep_file, stand, tmp_path, capsys
  ):
    stand.loss = self._loss
    stand.failing = {'search/fed_avg-client_lr1.0'}
    file = sweep_file(self._SEARCHED, *self._BASE)
    assert run.run_sweep(main, file, tmp_path / 'w') == 1
    assert stand.started[-2:] == ['fed_fish-seed1', 'fed_fish-seed2']
    assert len(stand.started) == 6 + 2
    output = capsys.readouterr()
    assert (
      'fedfish: error: 2 runs, such as fed_avg-seed1, have no learning rates: '
      'the run search/fed_avg-client_lr1.0 did not end well.\n'
    ) in output.err
    assert '2 of 4 runs done, 2 failed: ' in output.out

  def test_diverged_runs_are_not_chosen(
    self, sweep_file, stand, tmp_path, capsys
  ):
    def loss(config, is_held_out_by_arms):
      return math.nan if config.algorithm.name == 'fed_avg' else 7.0

    workdir = tmp_path / 'w'
    stand.loss = loss
    # The score of its last good checkpoint does not count.
    stand.diverging = {'search/fed_fish-client_lr0.25'}
    limit = '--config.training.max_non_finite_rounds=1'
    file = sweep_file(self._SEARCHED, *self._BASE, overrides=[limit])
    assert run.run_sweep(main, file, workdir) == 1
    assert stand.started[-2:] == ['fed_fish-seed1', 'fed_fish-seed2']
    config = run_directory.read_config(workdir / 'arms' / 'fed_fish-seed1')
    assert config.client_work.learning_rate == 0.5
    assert (
      'have no learning rates: no run of its search has a finite score.'
    ) in capsys.readouterr().err

  def test_a_method_without_what_is_searched(self, sweep_file, stand, tmp_path):
    workdir = tmp_path / 'w'
    stand.loss = lambda config, _: abs(config.algorithm.mu - 1.0)
    search = self._SEARCHED['learning_rate_search']
    file = sweep_file(
      {
        'grid': {'algorithm.name': ['fed_avg', 'fed_prox']},
        'learning_rate_search': search
        | {'settings': {'algorithm.mu': [0.5, 1.0, 2.0]}},
      },
      *self._BASE,
      'config.algorithm = dict(name="fed_avg")',
    )
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started[3:] == ['fed_avg', 'fed_prox']
    record = _record(workdir)
    (choice,) = record['learning_rates']
    assert choice['chosen'] == {'algorithm.mu': 1.0}
    assert record['arms'][0]['settings'] == {'algorithm.name': 'fed_avg'}

  def test_interrupted_twice_it_ends_as_undisturbed(
    self, sweep_file, stand, tmp_path
  ):
    best = {'fed_avg': 0.5, 'fed_fish': 2.0}
    stand.loss = lambda config, _: (
      5.0 + abs(config.client_work.learning_rate - best[config.algorithm.name])
    )
    search = self._SEARCHED['learning_rate_search'] | {'max_extensions': 3}
    searched = self._SEARCHED | {'learning_rate_search': search}
    file = sweep_file(searched, *self._BASE)
    assert run.run_sweep(main, file, tmp_path / 'undisturbed') == 0
    undisturbed, stand.started = stand.started, []
    # FedFish's best lies beyond the edge, of 1.0.
    assert undisturbed[6:8] == [
      'search/fed_fish-client_lr2.0',
      'search/fed_fish-client_lr4.0',
    ]
    for stand.stop_before in (
      'search/fed_fish-client_lr0.5',
      'search/fed_fish-client_lr4.0',
      None,
    ):
      code = 143 if stand.stop_before else 0
      assert run.run_sweep(main, file, tmp_path / 'w') == code
    assert stand.started == undisturbed
    assert _record(tmp_path / 'w') == _record(tmp_path / 'undisturbed')
    config = run_directory.read_config(tmp_path / 'w/arms/fed_fish-seed1')
    assert config.client_work.learning_rate == 2.0


class TestRefusals:
  @pytest.mark.parametrize(
    ('sweep', 'base', 'words'),
    [
      ({'grid': {'algorithm.name': ['fed_avg']}}, (), 'in `grid`, `evaluate`.'),
      ({'budget': 'fixed_compute'}, (), 'in `budget`.'),
      (
        {},
        ('config.server.learning_rate = 0.5',),
        'in server.learning_rate. Take that back',
      ),
      (
        {},
        ('config.training.max_non_finite_rounds = 3',),
        'in training.max_non_finite_rounds. Take that back',
      ),
    ],
  )
  def test_another_sweep(self, sweep_file, stand, tmp_path, sweep, base, words):
    workdir = tmp_path / 'w'
    assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
    before = (workdir / 'sweep.json').read_bytes()
    if 'grid' in sweep:
      sweep = {'evaluate': [{}]} | sweep
    file = sweep_file({**_SWEEP, **sweep}, *base)
    for start in (run.run_sweep, lambda _, *rest: dry_run.print_sweep(*rest)):
      with pytest.raises(
        UserError, match='holds a sweep that differs'
      ) as error:
        start(main, file, workdir)
      assert words in str(error.value)
    assert (workdir / 'sweep.json').read_bytes() == before

  def test_the_same_sweep_in_other_words(self, sweep_file, stand, tmp_path):
    workdir = tmp_path / 'w'
    assert run.run_sweep(main, sweep_file(_SWEEP), workdir) == 0
    stand.started.clear()
    # Defaults, and corpora that have moved.
    written = {'budget': ['fixed_rounds'], 'reference_local_epochs': 1}
    moved = "config.data.directory = 'moved/debian_descriptions'"
    file = sweep_file({**_SWEEP, **written}, moved)
    assert file.base.client_work.num_local_epochs == 1
    assert run.run_sweep(main, file, workdir) == 0
    assert stand.started == []

  @pytest.mark.parametrize(
    ('text', 'words'),
    [
      ('{', 'cannot be read (Expecting'),
      ('[]', 'Restore the file, or name another --workdir.'),
      ('{"schema_version": 2}', "cannot be read ('base')"),
      ('{"schema_version": 1}', 'its schema version is 1'),
    ],
  )
  def test_damaged_record(self, sweep_file, stand, tmp_path, text, words):
    (tmp_path / 'sweep.json').write_text(text)
    with pytest.raises(UserError) as error:
      run.run_sweep(main, sweep_file(_SWEEP), tmp_path)
    assert words in str(error.value)
    assert '\n' not in str(error.value)

  def test_memory(self, sweep_file, stand, tmp_path, monkeypatch):
    machine, sizes = {'total': 9, 'available': 9}, [1, 4, 2, 3]
    monkeypatch.setattr(environment, 'memory_bytes', lambda: machine)
    monkeypatch.setattr(memory, 'run_bytes', lambda config: sizes.pop())
    file = sweep_file(_SWEEP)
    # The largest of them: 4 + 3 + 2 = 9 fit.
    with pytest.raises(UserError) as error:
      run.run_sweep(main, file, tmp_path / 'w', num_jobs=4)
    assert str(error.value) == (
      '`--jobs` is 4, but 4 runs at once take up to 10 B (the largest 4 B), '
      'and 9 B of memory are available. Lower it.'
    )
    sizes += [1, 4, 2, 3]
    assert run.run_sweep(main, file, tmp_path / 'w', num_jobs=3) == 0
    # What is done needs no memory, and one run is never refused.
    machine['available'] = 0
    assert run.run_sweep(main, file, tmp_path / 'w', num_jobs=4) == 0
    sizes += [9, 9, 9, 9]
    assert run.run_sweep(main, file, tmp_path / 'v') == 0
    assert stand.num_at_a_time == [3, 1]

  def test_workdir_in_use(self, sweep_file, stand, tmp_path):
    (tmp_path / 'w').mkdir()
    with run_directory.lock(tmp_path / 'w'):
      with pytest.raises(UserError, match='in use by process '):
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
