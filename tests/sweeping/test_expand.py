"""All runs of a sweep, by hand, and sweeps that cannot be run."""

import pathlib

import pytest

from tff_fedfish.config import load
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import expand, searches

_GRID = {
  'algorithm.name': ['fed_avg', 'fed_fish'],
  'client_work.num_local_epochs': [1, 4],
}
_SEARCH = {
  'settings': {'client_work.learning_rate': [0.1, 0.3]},
  'num_rounds': 5,
  'num_clients': 7,
}


def _search_runs(file):
  found = searches.read_searches(file, expand.expand_arms(file))
  return [run for search in found for run in search.runs]


def _names(runs):
  return [run.directory.name for run in runs]


def test_arms_by_hand(sweep_file):
  file = sweep_file(
    {
      'grid': _GRID,
      'budget': ['fixed_rounds', 'fixed_compute'],
      'reference_local_epochs': 4,
    },
    overrides=['--config.seeds.cohort_seed=9'],
  )
  # The base has 30 rounds; 30 x 4 = 120 = 120 x 1 = 30 x 4.
  both = ('fixed_rounds', 'fixed_compute')
  arms = expand.expand_arms(file)
  assert [(arm.name, arm.num_rounds, arm.budgets) for arm in arms] == [
    ('fed_avg-E1-R30', 30, both[:1]),
    ('fed_avg-E1-R120', 120, both[1:]),
    ('fed_avg-E4-R30', 30, both),
    ('fed_fish-E1-R30', 30, both[:1]),
    ('fed_fish-E1-R120', 120, both[1:]),
    ('fed_fish-E4-R30', 30, both),
  ]
  assert {arm.config.seeds.cohort_seed for arm in arms} == {9}
  assert load.differences(file.base, arms[4].config) == ['training.num_rounds']


def test_a_method_without_a_server_step_has_one_arm(sweep_file):
  grid = {
    'algorithm.name': ['fed_avg', 'local_only'],
    'server.learning_rate': [0.5, 2],
  }
  arms = expand.expand_arms(sweep_file({'grid': grid}))
  names = ['fed_avg-server_lr0.5', 'fed_avg-server_lr2', 'local_only']
  assert [arm.name for arm in arms] == names


def test_search_runs_by_hand(sweep_file):
  file = sweep_file(
    {
      'grid': _GRID,
      'learning_rate_search': {
        'settings': {'server.learning_rate': [0.5, 2]},
        'num_rounds': 5,
        'per': ['algorithm.name'],
        'validation_fraction': 0.25,
        'num_clients': 6,
      },
    },
    overrides=['--config.client_splits.held_out_fraction=0.5'],
  )
  runs = _search_runs(file)
  assert [run.name for run in runs] == [
    'search/fed_avg-server_lr0.5',
    'search/fed_avg-server_lr2',
    'search/fed_fish-server_lr0.5',
    'search/fed_fish-server_lr2',
  ]
  run = runs[1]
  assert {*load.differences(file.base, run.config)} == {
    'algorithm.name',
    'client_splits.held_out_fraction',
    'evaluation.num_clients',
    'server.learning_rate',
    'training.num_rounds',
  }
  assert run.config.client_splits.held_out_fraction == 0.75
  assert run.config.evaluation.num_clients == 0
  [(output, command)] = run.evaluations.items()
  assert output.name == 'validation'
  assert command[7:] == [
    '--fractions=0.0',
    # Places below f are the arms'.
    '--held_out_from=0.5',
    '--max_clients=6',
    '--max_sequences_per_client=16',
  ]


def test_a_corpus_that_holds_clients_out_itself(sweep_file):
  path = pathlib.Path(__file__).parents[2] / 'configs' / 'mnist_by_writer.py'
  file = sweep_file(
    {'grid': {'seeds.model_seed': [1]}, 'learning_rate_search': _SEARCH},
    f'config = ConfigDict(runpy.run_path({str(path)!r})["get_config"]())',
  )
  assert file.base.client_splits.held_out_fraction is None
  # f = 0, and v = 0.1: search runs leave its own held-out clients aside.
  for run in _search_runs(file):
    assert run.config.client_splits.held_out_fraction == 0.1
    [command] = run.evaluations.values()
    assert '--max_clients=7' in command


def test_the_best_round_of_arms_but_not_of_searches(sweep_file):
  settings = {
    'checkpoints.keep_best': True,
    'training.patience': 3,
    'client_splits.validation_clients_fraction': 0.5,
  }
  file = sweep_file(
    {
      'grid': {'seeds.model_seed': [1]},
      'learning_rate_search': _SEARCH,
      'evaluate': [{}, {'best': True}],
    },
    overrides=[f'--config.{name}={value}' for name, value in settings.items()],
  )
  [arm] = expand.expand_arms(file)
  last, best = arm.evaluations.items()
  assert best[0].name == f'{last[0].name}_best'
  assert best[1][2] == f'{last[1][2]}@best'
  for run in _search_runs(file):
    assert {*settings} < {*load.differences(arm.config, run.config)}


def test_nobody_is_left_to_train_on(sweep_file):
  search = _SEARCH | {'validation_fraction': 0.5}
  file = sweep_file(
    {'grid': {'seeds.model_seed': [1]}, 'learning_rate_search': search},
    'config.client_splits = dict(held_out_fraction=0.5)',
  )
  with pytest.raises(UserError, match='`validation_fraction` 0.5 of the clie'):
    _search_runs(file)


def test_a_search_for_personal_models_scores_validation_rows(sweep_file):
  file = sweep_file(
    {
      'grid': {'algorithm.name': ['fed_avg', 'fed_fomo']},
      'learning_rate_search': _SEARCH | {'per': ['algorithm.name']},
    }
  )
  runs = _search_runs(file)
  share = file.base.client_splits.held_out_fraction
  for run in runs:
    [command] = run.evaluations.values()
    is_own = run.config.algorithm.name == 'fed_fomo'
    assert ('--client_split=own_validation' in command) == is_own
    assert any('--held_out_from' in word for word in command) != is_own
    # The same clients train as in the arms.
    assert (run.config.client_splits.held_out_fraction == share) == is_own
  assert len(runs) == 4


@pytest.mark.parametrize(
  ('method', 'evaluate'),
  [
    ('local_only', []),
    ('fed_avg', [{'client_split': 'own_test', 'fractions': [0]}]),
  ],
)
def test_no_search_without_validation_rows(method, evaluate, sweep_file):
  sweep = {
    'grid': {'algorithm.name': [method]},
    'learning_rate_search': _SEARCH,
    'evaluate': evaluate,
  }
  base = f'config.algorithm.name = {method!r}'
  tests = '--config.client_splits.test_fraction=0.2'
  with pytest.raises(UserError, match=f'but {method!r} has none. Set '):
    _search_runs(sweep_file(sweep, base, overrides=[tests]))
  overrides = [tests, '--config.client_splits.validation_fraction=0.2']
  assert len(_search_runs(sweep_file(sweep, base, overrides=overrides))) == 2


@pytest.mark.parametrize(
  ('grid', 'name', 'remedy'),
  [
    # The base's FedAvg is searched for both; FedFomo's clients have tests.
    (
      {'algorithm.name': ['fed_avg', 'fed_fomo']},
      'client_splits.test_fraction',
      dict(overrides=['--config.client_splits.test_fraction=0.2']),
    ),
    (
      {'algorithm.name': ['fed_fomo'], 'data.sequence_length': [64, 32]},
      'data.sequence_length',
      dict(per=['algorithm.name', 'data.sequence_length']),
    ),
  ],
)
def test_a_search_validates_no_rows_that_runs_are_scored_on(
  grid, name, remedy, sweep_file
):
  base = "config.algorithm.name = 'fed_avg'"
  overrides = ['--config.client_splits.validation_fraction=0.2']
  per = ['algorithm.name'] if len(grid) == 2 else []

  def file(per, overrides):
    search = _SEARCH | {'per': per}
    sweep = {'grid': grid, 'learning_rate_search': search}
    return sweep_file(sweep, base, overrides=overrides)

  with pytest.raises(UserError, match='would score rows that runs of') as error:
    _search_runs(file(per, overrides))
  assert f'{name!r} differs' in str(error.value)
  runs = _search_runs(
    file(remedy.get('per', per), overrides + remedy.get('overrides', []))
  )
  for run in runs:
    [command] = run.evaluations.values()
    assert '--client_split=own_validation' in command


@pytest.mark.parametrize(
  ('sweep', 'base', 'words'),
  [
    (
      {'grid': {'client_work.epochs': [1]}},
      (),
      '`config.client_work.epochs` is unknown; the nearest',
    ),
    (
      {'grid': {'cohorts.cohort_size': [4, '8']}},
      (),
      "`config.cohorts.cohort_size` must be an int or None, found '8'",
    ),
    (
      {
        'grid': {'client_work.num_local_epochs': [0]},
        'budget': 'fixed_compute',
      },
      (),
      '`config.client_work.num_local_epochs` must be at least 1, found 0',
    ),
    (
      {'grid': _GRID, 'budget': 'fixed_compute'},
      (),
      '30 x 1 = 30, to be a multiple of every',
    ),
    (
      {'grid': {'training.patience': [None, 3]}, 'budget': 'fixed_compute'},
      (),
      'needs `training.patience` None, as runs that stop early differ in',
    ),
    (
      {'grid': _GRID, 'evaluate': [{'best': True}]},
      (),
      '`best` requires `checkpoints.keep_best`. Set it.',
    ),
    (
      {'grid': _GRID, 'evaluate': [{}, {'max_clients': 3}]},
      (),
      "the evaluation 'debian_descriptions' of the run 'fed_avg-E1' twice",
    ),
    (
      {'grid': _GRID, 'evaluate': [{}]},
      (
        'config.client_splits = dict(held_out_fraction=0.0)',
        'config.evaluation.num_clients = 0',
      ),
      "the run 'fed_avg-E1': `--client_split` is 'held_out', but the run has",
    ),
    (
      {'grid': _GRID, 'evaluate': [{'data': 'x', 'barrier': True}]},
      (),
      "needs the run's own corpus as `--data`, but 'x' is another one",
    ),
    (
      {'grid': _GRID, 'evaluate': [{'client_split': 'own_test'}]},
      (),
      'requires clients with test rows, but the run has none',
    ),
    (
      {'grid': {'algorithm.name': ['local_only']}, 'evaluate': [{'data': 'x'}]},
      (),
      "'local_only' (personal models) needs the run's own corpus",
    ),
    (
      {
        'grid': {'algorithm.name': ['local_only']},
        'evaluate': [{'fractions': [0.5]}],
      },
      (),
      '`--fractions` is not read with',
    ),
    (
      {
        'grid': {'algorithm.name': ['local_only']},
        'evaluate': [{'barrier': True}],
      },
      (),
      "`--barrier` is not available for 'local_only'",
    ),
    (
      {'grid': {'algorithm.relative_floor': [0.0, 1.0]}},
      ('config.algorithm = dict(name="fed_avg")',),
      'is read by no run of the sweep: their methods are fed_avg, and fed_fish',
    ),
    (
      {'grid': {'training.start_from': [None, 'none']}},
      (),
      "Two runs of the sweep would be called 'training_start_from_none'",
    ),
  ],
)
def test_sweeps_that_cannot_be_run(sweep_file, sweep, base, words):
  with pytest.raises(UserError) as error:
    expand.expand_arms(sweep_file(sweep, *base))
  assert words in str(error.value)
  assert '\n' not in str(error.value)


class TestSettingsOfSeveralMethods:
  """Settings that one method reads and another does not, in one sweep."""

  def test_cells_of_one_config_run_once(self, sweep_file):
    grid = {
      'algorithm.name': ['fed_avg', 'fed_fish'],
      'algorithm.relative_floor': [0.0, 1.0],
    }
    arms = expand.expand_arms(sweep_file({'grid': grid}))
    # FedAvg has no floor: its two cells are one run.
    names = ['fed_avg', 'fed_fish-floor0.0', 'fed_fish-floor1.0']
    assert _names(arms) == names

  def test_rows_of_tied_settings_keep_their_names(self, sweep_file):
    key = 'algorithm.name,algorithm.fisher_estimator'
    rows = [
      ('fed_avg', 'extra_pass'),
      ('fed_avg', 'example_sq'),
      ('fed_fish', 'example_sq'),
    ]
    arms = expand.expand_arms(sweep_file({'grid': {key: rows}}))
    assert _names(arms) == ['fed_avg-extra_pass', 'fed_fish-example_sq']

  def test_the_base_may_hold_what_only_another_method_reads(
    self, sweep_file, capsys
  ):
    base = 'config.algorithm = dict(name="fed_avg", relative_floor=0.5)'
    sweep = {'grid': {'algorithm.name': ['fed_avg', 'fed_fish']}}
    _, fish = expand.expand_arms(sweep_file(sweep, base))
    assert fish.config.algorithm.relative_floor == 0.5
    assert capsys.readouterr().err == ''
    # What no run reads is named.
    sweep = {'grid': {'client_work.num_local_epochs': [1, 2]}}
    expand.expand_arms(sweep_file(sweep, base))
    assert 'algorithm.relative_floor' in capsys.readouterr().err

  def test_an_override_that_no_run_reads(self, sweep_file):
    file = sweep_file(
      {'grid': {'client_work.num_local_epochs': [1, 2]}},
      'config.algorithm = dict(name="fed_avg")',
      overrides=['--config.algorithm.relative_floor=0.1'],
    )
    with pytest.raises(
      UserError, match="floor' in the overrides is read by no"
    ):
      expand.expand_arms(file)

  def _searching(self, sweep_file, settings, **search):
    search = {'settings': settings, 'num_rounds': 2} | search
    return sweep_file(
      {
        'grid': {'algorithm.name': ['fed_avg', 'fed_prox']},
        'learning_rate_search': {'per': ['algorithm.name']} | search,
      },
      'config.algorithm = dict(name="fed_avg")',
    )

  def test_what_is_searched_may_be_read_by_one_method(self, sweep_file):
    settings = {'algorithm.mu': [0.1, 1.0], 'server.learning_rate': [0.1, 0.5]}
    file = self._searching(sweep_file, settings)
    runs = _search_runs(file)
    # FedAvg has no mu: its 2 x 2 points are 2 runs.
    assert _names(runs) == [
      'fed_avg-server_lr0.1',
      'fed_avg-server_lr0.5',
      'fed_prox-mu0.1-server_lr0.1',
      'fed_prox-mu0.1-server_lr0.5',
      'fed_prox-mu1.0-server_lr0.1',
      'fed_prox-mu1.0-server_lr0.5',
    ]
    average, prox = expand.expand_arms(file)
    rates = runs[-1].rates
    assert rates == {'algorithm.mu': 1.0, 'server.learning_rate': 0.5}
    assert expand.with_rates(file, prox, rates).rates == rates
    # One search may be for arms of several methods.
    assert expand.with_rates(file, average, rates).rates == runs[1].rates

  def test_a_searched_setting_that_no_search_reads(self, sweep_file):
    # One search for all arms, with the base's method.
    file = self._searching(sweep_file, {'algorithm.mu': [0.1, 1.0]}, per=[])
    with pytest.raises(UserError, match="'algorithm.mu', but no search is for"):
      _search_runs(file)

  def test_a_method_of_ones_own_beside_a_built_in_one(self, sweep_file):
    own = 'own_methods.magnitude_mean'
    file = sweep_file(
      {
        'grid': {
          'algorithm.name': ['fed_avg', own],
          'algorithm.magnitude_power': [0.5, 1.0],
        }
      },
      # Only its module says what reads this.
      'config.algorithm = dict(name="fed_avg", magnitude_power=2.0)',
    )
    found = [
      (arm.config.algorithm.name, arm.point.get('algorithm.magnitude_power'))
      for arm in expand.expand_arms(file)
    ]
    assert found == [('fed_avg', None), (own, 0.5), (own, 1.0)]
