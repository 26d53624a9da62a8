"""All runs of a sweep, by hand, and sweeps that cannot be run."""

import pytest

from tff_fedfish.config import load as config_loading
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import sweep_runs

_GRID = {
  'algorithm.name': ['fed_avg', 'fed_fish'],
  'client_work.num_local_epochs': [1, 4],
}


def _error(file):
  with pytest.raises(UserError) as error:
    sweep_runs.expand_arms(file)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_arms_by_hand(sweep_file):
  file = sweep_file(
    {
      'grid': _GRID,
      'budget': ['fixed_rounds', 'fixed_compute'],
      'reference_local_epochs': 4,
    }
  )
  # The base has 30 rounds; 30 x 4 = 120 = 120 x 1 = 30 x 4.
  both = ('fixed_rounds', 'fixed_compute')
  found = [
    (arm.name, arm.num_rounds, arm.budgets)
    for arm in sweep_runs.expand_arms(file)
  ]
  assert found == [
    ('fed_avg-E1-R30', 30, both[:1]),
    ('fed_avg-E1-R120', 120, both[1:]),
    ('fed_avg-E4-R30', 30, both),
    ('fed_fish-E1-R30', 30, both[:1]),
    ('fed_fish-E1-R120', 120, both[1:]),
    ('fed_fish-E4-R30', 30, both),
  ]


def test_an_arm_differs_from_the_base_in_nothing_else(sweep_file):
  file = sweep_file(
    {'grid': {'client_work.num_local_epochs': [1, 3, 10]}}
    | {'budget': 'fixed_compute'}
  )
  arms = sweep_runs.expand_arms(file)
  # The reference is the base's 1 local epoch: 30 x 1 = 10 x 3 = 3 x 10.
  assert [arm.name for arm in arms] == ['E1', 'E3', 'E10']
  assert [arm.num_rounds for arm in arms] == [30, 10, 3]
  for arm in arms:
    changed = config_loading.differences(file.base, arm.config)
    expected = ['client_work.num_local_epochs', 'training.num_rounds']
    assert changed == (expected if arm.name != 'E1' else [])
    assert arm.config.client_work.num_local_epochs == int(arm.name[1:])


def test_overrides_are_of_the_base(sweep_file):
  file = sweep_file(
    {'grid': _GRID},
    overrides=[
      '--config.training.num_rounds=7',
      '--config.seeds.cohort_seed=9',
    ],
  )
  for arm in sweep_runs.expand_arms(file):
    assert arm.num_rounds == 7
    assert arm.config.seeds.cohort_seed == 9


def test_sizes_are_those_of_the_preset(sweep_file):
  file = sweep_file({'grid': {'model.preset': ['tiny', 'small']}})
  tiny, small = (arm.config.model for arm in sweep_runs.expand_arms(file))
  assert (tiny.num_layers, tiny.width) == (4, 128)
  assert (small.num_layers, small.width) == (6, 384)


def test_chosen_rates_are_the_arm_s(sweep_file):
  file = sweep_file({'grid': _GRID})
  arm = sweep_runs.expand_arms(file)[0]
  rates = {'client_work.learning_rate': 0.25}
  chosen = sweep_runs.with_rates(file, arm, rates)
  assert (chosen.name, chosen.point, chosen.rates) == (
    arm.name,
    arm.point,
    rates,
  )
  assert config_loading.differences(arm.config, chosen.config) == [*rates]
  assert chosen.config.client_work.learning_rate == 0.25


def test_search_runs_by_hand(sweep_file):
  file = sweep_file(
    {
      'grid': _GRID,
      'learning_rate_search': {
        'settings': {'server.learning_rate': [0.01, 0.1]},
        'num_rounds': 5,
        'per': ['algorithm.name'],
        'validation_fraction': 0.25,
      },
    },
    'config.client_splits = dict(held_out_fraction=0.5)',
  )
  runs = sweep_runs.expand_search(file)
  assert [run.name for run in runs] == [
    'search/fed_avg-server_lr0.01',
    'search/fed_avg-server_lr0.1',
    'search/fed_fish-server_lr0.01',
    'search/fed_fish-server_lr0.1',
  ]
  run = runs[1]
  assert run.point == {'algorithm.name': 'fed_avg'}
  assert run.rates == {'server.learning_rate': 0.1}
  assert run.config.client_splits.held_out_fraction == 0.75
  assert run.config.evaluation.num_clients == 0
  assert run.config.algorithm.name == 'fed_avg'
  assert run.num_rounds == 5
  # What is not in `per` is the base's.
  assert run.config.client_work.num_local_epochs == 1
  assert run.config.seeds == file.base.seeds


_SEARCH = {
  'settings': {'client_work.learning_rate': [0.1, 0.3]},
  'num_rounds': 5,
  'num_clients': 7,
}


def test_a_search_for_models_of_clients_own_scores_validation_rows(sweep_file):
  file = sweep_file(
    {
      'grid': {'algorithm.name': ['fed_avg', 'fed_fomo']},
      'learning_rate_search': _SEARCH | {'per': ['algorithm.name']},
    }
  )
  runs = sweep_runs.expand_search(file)
  share = file.base.client_splits.held_out_fraction
  for run in runs:
    [command] = run.evaluations.values()
    is_own = run.config.algorithm.name == 'fed_fomo'
    assert ('--client_split=own_validation' in command) == is_own
    assert ('--max_clients=7' in command) == is_own
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
  with pytest.raises(UserError) as error:
    sweep_runs.expand_search(
      sweep_file(sweep, f'config.algorithm.name = {method!r}')
    )
  assert str(error.value) == (
    "`learning_rate_search` scores clients' validation rows where runs are "
    f'scored on their test rows, but {method!r} has none. Set '
    '`client_splits.validation_fraction` above 0, or leave the search out.'
  )
  file = sweep_file(
    sweep,
    f'config.algorithm.name = {method!r}',
    overrides=['--config.client_splits.validation_fraction=0.2'],
  )
  assert len(sweep_runs.expand_search(file)) == 2


def test_a_search_for_several_methods_keeps_the_test_rows_of_each(sweep_file):
  sweep = {
    # The base's FedAvg is searched for both.
    'grid': {'algorithm.name': ['fed_avg', 'fed_fomo']},
    'learning_rate_search': _SEARCH,
  }
  base = "config.algorithm.name = 'fed_avg'"
  overrides = ['--config.client_splits.validation_fraction=0.2']
  # 0.2 of the rows of FedFomo's clients are for tests.
  with pytest.raises(UserError) as error:
    sweep_runs.expand_search(sweep_file(sweep, base, overrides=overrides))
  assert str(error.value) == (
    "`client_splits.test_fraction` must be the same for 'fed_avg', with which "
    "`learning_rate_search` runs, and for 'fed_fomo', found 0.0 and 0.2. Set "
    'it in the base.'
  )
  overrides += ['--config.client_splits.test_fraction=0.2']
  file = sweep_file(sweep, base, overrides=overrides)
  for run in sweep_runs.expand_search(file):
    [command] = run.evaluations.values()
    assert '--client_split=own_validation' in command


def test_a_search_validates_no_rows_that_runs_are_scored_on(sweep_file):
  sweep = {
    'grid': {'data.sequence_length': [64, 32]},
    'learning_rate_search': _SEARCH,
  }
  base = "config.algorithm.name = 'fed_fomo'"
  with pytest.raises(UserError) as error:
    sweep_runs.expand_search(sweep_file(sweep, base))
  assert str(error.value) == (
    "`per` of `learning_rate_search` must hold 'data.sequence_length', which "
    '`grid` varies: other values divide the rows of a client otherwise into '
    'those that are validated and those that runs are scored on.'
  )
  sweep['learning_rate_search'] = _SEARCH | {'per': ['data.sequence_length']}
  assert len(sweep_runs.expand_search(sweep_file(sweep, base))) == 4
  # Batches leave the rows as they are.
  sweep['grid'] = {'data.client_batches': ['ragged', 'repeat_full']}
  sweep['learning_rate_search'] = _SEARCH
  assert len(sweep_runs.expand_search(sweep_file(sweep, base))) == 2


def test_no_search_has_no_runs(sweep_file):
  assert sweep_runs.expand_search(sweep_file({'grid': _GRID})) == []


class TestErrors:
  def test_unknown_setting(self, sweep_file):
    error = _error(sweep_file({'grid': {'client_work.epochs': [1]}}))
    assert "swept.py, run client_work_epochs1'" in error
    assert '`config.client_work.epochs` is unknown; the nearest' in error

  def test_unknown_section(self, sweep_file):
    error = _error(sweep_file({'grid': {'work.x': [1]}}))
    assert '`config.work` is unknown' in error

  def test_value_of_the_wrong_type(self, sweep_file):
    error = _error(sweep_file({'grid': {'cohorts.cohort_size': [4, '8']}}))
    assert (
      "`config.cohorts.cohort_size` must be an int or None, found '8'" in error
    )

  @pytest.mark.parametrize('value', [0, '4', 2.0, True])
  def test_local_epochs(self, sweep_file, value):
    error = _error(
      sweep_file({'grid': {'client_work.num_local_epochs': [value]}})
    )
    assert f'ints of at least 1, found {value!r}' in error

  def test_rounds_that_do_not_divide(self, sweep_file):
    error = _error(sweep_file({'grid': _GRID, 'budget': 'fixed_compute'}))
    assert '30 x 1 = 30' in error
    assert '4 does not divide 30' in error

  def test_evaluation_that_is_written_twice(self, sweep_file):
    error = _error(
      sweep_file({'grid': _GRID, 'evaluate': [{}, {'max_clients': 3}]})
    )
    assert (
      "the evaluation 'debian_descriptions' of the run 'fed_avg-E1'" in error
    )

  def test_evaluation_of_a_corpus_of_the_same_name(self, sweep_file):
    evaluate = [
      {},
      {'data': 'other/debian_descriptions', 'name': 'again'},
      {'data': 'other/debian_descriptions'},
    ]
    error = _error(sweep_file({'grid': _GRID, 'evaluate': evaluate}))
    assert "the evaluation 'debian_descriptions' of" in error
    (arm, *_) = sweep_runs.expand_arms(
      sweep_file({'grid': _GRID, 'evaluate': evaluate[:2]})
    )
    names = ['debian_descriptions', 'again']
    assert [output.name for output in arm.evaluations] == names

  def test_nobody_is_held_out(self, sweep_file):
    error = _error(
      sweep_file(
        {'grid': _GRID, 'evaluate': [{}]},
        'config.client_splits = dict(held_out_fraction=0.0)',
        'config.evaluation.num_clients = 0',
      )
    )
    assert "'fed_avg-E1', whose `client_splits.held_out_fraction` is 0" in error


class TestSettingsOfSeveralMethods:
  """Settings that one method reads and another does not, in one sweep."""

  def test_cells_of_one_config_run_once(self, sweep_file):
    file = sweep_file(
      {
        'grid': {
          'algorithm.name': ['fed_avg', 'fed_fish'],
          'algorithm.relative_floor': [0.0, 1.0],
        }
      }
    )
    arms = sweep_runs.expand_arms(file)
    # FedAvg has no floor: its two cells are one run.
    assert [(arm.name, arm.num_cells) for arm in arms] == [
      ('fed_avg', 2),
      ('fed_fish-floor0.0', 1),
      ('fed_fish-floor1.0', 1),
    ]
    assert not hasattr(arms[0].config.algorithm, 'relative_floor')
    assert arms[2].config.algorithm.relative_floor == 1.0

  def test_rows_of_tied_settings_keep_their_names(self, sweep_file):
    key = 'algorithm.name,algorithm.fisher_estimator'
    rows = [
      ('fed_avg', 'extra_pass'),
      ('fed_avg', 'example_sq'),
      ('fed_fish', 'example_sq'),
    ]
    arms = sweep_runs.expand_arms(sweep_file({'grid': {key: rows}}))
    assert [(arm.name, arm.num_cells) for arm in arms] == [
      ('fed_avg-extra_pass', 2),
      ('fed_fish-example_sq', 1),
    ]

  def test_the_base_may_hold_what_only_another_method_reads(self, sweep_file):
    # The base is of FedAvg, the setting of the arms of FedFish.
    file = sweep_file(
      {'grid': {'algorithm.name': ['fed_avg', 'fed_fish']}},
      'config.algorithm = dict(name="fed_avg", relative_floor=0.5)',
    )
    average, fish = sweep_runs.expand_arms(file)
    assert fish.config.algorithm.relative_floor == 0.5
    assert average.config.algorithm.name == 'fed_avg'
    assert not file.require_read([average.config, fish.config])

  def test_what_no_run_reads_is_named(self, sweep_file, capsys):
    file = sweep_file(
      {'grid': {'client_work.num_local_epochs': [1, 2]}},
      'config.algorithm = dict(name="fed_avg", relative_floor=0.5)',
    )
    sweep_runs.expand_arms(file)
    assert capsys.readouterr().err == (
      'fedfish: note: fed_avg ignores algorithm.relative_floor\n'
    )

  def test_an_axis_that_no_run_reads(self, sweep_file):
    file = sweep_file(
      {'grid': {'algorithm.relative_floor': [0.0, 1.0]}},
      'config.algorithm = dict(name="fed_avg")',
    )
    assert (
      "sets 'algorithm.relative_floor', which no run of the sweep reads: their "
      'methods are fed_avg, and it is read by fed_fish. Leave it out.'
    ) in _error(file)

  def test_an_override_that_no_run_reads(self, sweep_file):
    file = sweep_file(
      {'grid': {'client_work.num_local_epochs': [1, 2]}},
      'config.algorithm = dict(name="fed_avg")',
      overrides=['--config.algorithm.relative_floor=0.1'],
    )
    assert _error(file).startswith(
      "`--config.algorithm.relative_floor` sets 'algorithm.relative_floor', "
      'which no run of the sweep reads'
    )

  def test_a_search_for_each_method_and_setting(self, sweep_file):
    file = sweep_file(
      {
        'grid': {
          'algorithm.name': ['fed_avg', 'fed_fish'],
          'algorithm.relative_floor': [0.0, 1.0],
        },
        'learning_rate_search': {
          'settings': {'server.learning_rate': [0.1]},
          'per': ['algorithm.name', 'algorithm.relative_floor'],
          'num_rounds': 2,
        },
      }
    )
    found = [run.run.name for run in sweep_runs.expand_search(file)]
    assert found == [
      'fed_avg-server_lr0.1',
      'fed_fish-floor0.0-server_lr0.1',
      'fed_fish-floor1.0-server_lr0.1',
    ]
    search = file.search
    for arm in sweep_runs.expand_arms(file):
      assert search.group_of(arm.point) in sweep_runs.search_groups(file)

  def _searching(self, sweep_file, methods, settings, base='fed_avg', **search):
    return sweep_file(
      {
        'grid': {'algorithm.name': methods},
        'learning_rate_search': {
          'settings': settings,
          'per': ['algorithm.name'],
          'num_rounds': 2,
        }
        | search,
      },
      f'config.algorithm = dict(name={base!r})',
    )

  def test_what_is_searched_may_be_read_by_one_method(self, sweep_file):
    settings = {'algorithm.mu': [0.1, 1.0], 'server.learning_rate': [0.1, 0.5]}
    file = self._searching(sweep_file, ['fed_avg', 'fed_prox'], settings)
    runs = sweep_runs.expand_search(file)
    # FedAvg has no mu: its 2 x 2 points are 2 runs.
    assert [run.run.name for run in runs] == [
      'fed_avg-server_lr0.1',
      'fed_avg-server_lr0.5',
      'fed_prox-mu0.1-server_lr0.1',
      'fed_prox-mu0.1-server_lr0.5',
      'fed_prox-mu1.0-server_lr0.1',
      'fed_prox-mu1.0-server_lr0.5',
    ]
    assert runs[0].rates == {'server.learning_rate': 0.1}
    assert runs[-1].rates == {'algorithm.mu': 1.0, 'server.learning_rate': 0.5}
    average, prox = sweep_runs.expand_arms(file)
    rates = runs[-1].rates
    assert sweep_runs.with_rates(file, prox, rates).rates == rates
    # One search may be for arms of several methods.
    assert sweep_runs.with_rates(file, average, rates).rates == runs[1].rates

  def test_searched_rows_of_one_config_run_once(self, sweep_file):
    settings = {
      'algorithm.mu,server.learning_rate': [(0.1, 0.5), (1.0, 0.5), (1.0, 0.1)]
    }
    file = self._searching(sweep_file, ['fed_avg', 'fed_prox'], settings)
    assert [run.run.name for run in sweep_runs.expand_search(file)] == [
      'fed_avg-mu0.1-server_lr0.5',
      'fed_avg-mu1.0-server_lr0.1',
      'fed_prox-mu0.1-server_lr0.5',
      'fed_prox-mu1.0-server_lr0.5',
      'fed_prox-mu1.0-server_lr0.1',
    ]

  def test_a_method_that_reads_nothing_of_what_is_searched(self, sweep_file):
    file = self._searching(
      sweep_file, ['fed_avg', 'fed_prox'], {'algorithm.mu': [0.1, 1.0]}
    )
    assert [run.run.name for run in sweep_runs.expand_search(file)] == [
      'fed_prox-mu0.1',
      'fed_prox-mu1.0',
    ]

  @pytest.mark.parametrize(
    'expand', [sweep_runs.expand_search, sweep_runs.expand_arms]
  )
  def test_a_searched_setting_that_no_run_reads(self, sweep_file, expand):
    settings = {'algorithm.mu': [0.1, 1.0], 'server.learning_rate': [0.1]}
    file = self._searching(sweep_file, ['fed_avg'], settings)
    with pytest.raises(UserError) as error:
      expand(file)
    kind = 'search' if expand is sweep_runs.expand_search else 'sweep'
    assert str(error.value) == (
      f"`learning_rate_search` in {file.path!r} sets 'algorithm.mu', which no "
      f'run of the {kind} reads: their methods are fed_avg, and it is read by '
      'fed_prox, moon. Leave it out.'
    )

  def test_a_searched_setting_of_another_base(self, sweep_file):
    # One search for all arms, with the base's method.
    settings = {'algorithm.mu': [0.1, 1.0]}
    file = self._searching(
      sweep_file, ['fed_avg', 'fed_prox'], settings, per=[]
    )
    with pytest.raises(
      UserError, match="'algorithm.mu', which no run of the s"
    ):
      sweep_runs.expand_search(file)

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
      for arm in sweep_runs.expand_arms(file)
    ]
    assert found == [('fed_avg', None), (own, 0.5), (own, 1.0)]


@pytest.mark.parametrize(
  ('method', 'entry', 'words'),
  [
    ('fed_avg', {}, 'but it has none: set `client_splits.test_fraction`'),
    ('fed_avg', {'barrier': True}, 'where there is no barrier'),
    ('fed_avg', {'fractions': [0.25]}, 'are not fine-tuned: `fractions`'),
    ('fed_avg', {'data': 'corpora/c4'}, "its `data` is 'corpora/c4'"),
    ('local_only', {'barrier': True}, 'where there is no barrier'),
  ],
)
def test_own_test_rows_that_cannot_be_scored(method, entry, words, sweep_file):
  if method == 'fed_avg':
    entry = entry | {'client_split': 'own_test'}
  file = sweep_file({'grid': {'algorithm.name': [method]}, 'evaluate': [entry]})
  with pytest.raises(UserError) as error:
    sweep_runs.expand_arms(file)
  assert f'of the run {method!r} on their own test rows, ' in str(error.value)
  assert words in str(error.value)


def test_own_test_rows_of_a_method_with_models_of_clients_own(sweep_file):
  file = sweep_file(
    {'grid': {'algorithm.name': ['local_only']}, 'evaluate': [{}]}
  )
  assert len(sweep_runs.expand_arms(file)) == 1
