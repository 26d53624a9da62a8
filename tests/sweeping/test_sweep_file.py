"""Sweep files: what they hold, and all that can be wrong with one."""

import pathlib

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import evaluations
from tff_fedfish.sweeping.sweep_file import read_sweep_file

_GRID = {
  'algorithm.name': ['fed_avg', 'fed_fish'],
  'client_work.num_local_epochs': [1, 4],
}
_SEARCH = {'settings': {'server.learning_rate': [0.1, 1.0]}, 'num_rounds': 3}
_RUN = pathlib.Path('w/arms/x')


def test_defaults(sweep_file):
  file = sweep_file({'grid': _GRID}, 'config.client_work.num_local_epochs = 3')
  assert file.budgets == ('fixed_rounds',)
  assert file.reference_local_epochs == 3
  assert file.search is None and file.evaluations == ()
  search = sweep_file({'grid': _GRID, 'learning_rate_search': _SEARCH}).search
  assert (search.metric, search.per) == ('held-out loss', ())
  assert (search.validation_fraction, search.max_extensions) == (0.1, 0)


def test_rounds_by_budget(sweep_file):
  file = sweep_file(
    {
      'grid': {'client_work.num_local_epochs': [1, 4, 16]},
      'budget': ['fixed_compute', 'fixed_rounds'],
      'reference_local_epochs': 4,
    },
    overrides=['--config.training.num_rounds=120'],
  )

  def rounds(epochs):
    return file.rounds_by_budget({'client_work.num_local_epochs': epochs})

  # 120 rounds; and 120 x 4 = 480 = 480 x 1 = 120 x 4 = 30 x 16.
  assert rounds(1) == {120: ('fixed_rounds',), 480: ('fixed_compute',)}
  assert rounds(4) == {120: ('fixed_rounds', 'fixed_compute')}
  assert rounds(16) == {120: ('fixed_rounds',), 30: ('fixed_compute',)}
  with pytest.raises(UserError, match='120 x 4 = 480.*7 does not divide 480'):
    rounds(7)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'gird': {}}, '`gird` is unknown; known are grid, budget, '),
    ({'budget': 'x'}, "`budget` must be 'fixed_rounds' or 'fixed_compute'"),
    ({'budget': ['fixed_rounds', 'x']}, "found ['fixed_rounds', 'x']"),
    ({'reference_local_epochs': 0}, 'an int of at least 1, found 0'),
    ({'evaluate': {'data': 'x'}}, '`evaluate` must be a list of evaluations'),
  ],
)
def test_what_is_wrong_with_a_sweep(sweep_file, change, words):
  with pytest.raises(UserError) as error:
    sweep_file({'grid': _GRID} | change)
  assert str(error.value).startswith('Invalid sweep ')
  assert words in str(error.value)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'nme': 1}, "'nme' is unknown; known are settings, num_rounds, metric"),
    ({'num_rounds': 0}, '`num_rounds` must be at least 1, found 0'),
    ({'metric': 'loss'}, '`metric` must be one of held-out loss, accuracy'),
    ({'validation_fraction': 1.0}, 'above 0 and below 1, found 1.0'),
    ({'max_extensions': True}, '`max_extensions` must be an int, found True'),
    ({'per': 'algorithm.name'}, '`per` must be a list of keys of `grid`'),
    ({'per': ['server.beta_1']}, "found ['server.beta_1']"),
    ({'settings': {}}, '`settings` must name at least one setting'),
    (
      {'settings': {'client_work.num_local_epochs': [2]}},
      "'client_work.num_local_epochs' must not be in `grid`, too",
    ),
    (
      {'settings': {'seeds.split_seed': [1]}},
      "`settings` must not search 'seeds.split_seed'",
    ),
    (
      {'settings': {'algorithm.name': ['fed_avg', 'fed_fomo']}},
      "`settings` must not search 'algorithm.name'",
    ),
    (
      {'settings': {'training.patience': [1, 2]}},
      "`settings` must not search 'training.patience'",
    ),
    (
      {'settings': {'server.optimizer': ['sgd', 'adam']}, 'max_extensions': 1},
      '`max_extensions` requires `settings` with one setting and at least two',
    ),
  ],
)
def test_what_is_wrong_with_a_search(sweep_file, change, words):
  with pytest.raises(UserError) as error:
    sweep_file({'grid': _GRID, 'learning_rate_search': _SEARCH | change})
  assert '`learning_rate_search`: ' in str(error.value)
  assert words in str(error.value)


@pytest.mark.parametrize(
  'name',
  [
    *('seeds.split_seed', 'client_splits.held_out_fraction'),
    *('seeds.partition_seed', 'partition.alpha'),
  ],
)
def test_searches_are_apart_where_other_clients_are_held_out(sweep_file, name):
  sweep = {'grid': {name: [0, 1]}, 'learning_rate_search': _SEARCH}
  with pytest.raises(
    UserError, match=f"`per` must hold '{name}', which `grid`"
  ):
    sweep_file(sweep)


@pytest.mark.parametrize(
  ('entry', 'words'),
  [
    (3, 'must be a dictionary, found 3'),
    ({'dta': 'x'}, "'dta' is unknown; known are fractions, client_split"),
    ({'data': 3}, '`data` must be a string or None'),
    ({'name': 'a/b'}, "the name of a directory, without '/'"),
    ({'fractions': [0.75]}, '`--fractions` must be numbers from 0 to 0.5'),
    ({'fractions': 0.5}, '`--fractions` must be a list of numbers, found 0.5'),
    ({'barrier': 1}, '`--barrier` must be true or false, found 1'),
    ({'best': 1}, '`best` must be true or false'),
    ({'client_split': 'own_validation'}, "must not be 'own_validation'"),
  ],
)
def test_what_is_wrong_with_an_evaluation(sweep_file, entry, words):
  with pytest.raises(UserError) as error:
    sweep_file({'grid': _GRID, 'evaluate': [{}, entry]})
  assert '`evaluate`, number 2: ' in str(error.value)
  assert words in str(error.value)


def test_varied_settings_are_not_overridden(sweep_file):
  sweep = {'grid': _GRID, 'learning_rate_search': _SEARCH}
  for setting, key in (
    ('algorithm.name=fed_avg', 'grid'),
    ('server.learning_rate=0.5', 'learning_rate_search'),
  ):
    with pytest.raises(UserError, match=f'must be left out: `{key}` in'):
      sweep_file(sweep, overrides=[f'--config.{setting}'])


def test_an_unknown_setting_beside_those_of_a_method_of_ones_own(sweep_file):
  own = 'own_methods.magnitude_mean'
  sweep = {'grid': {'algorithm.name': ['fed_avg', own]}}
  base = 'config.algorithm = dict(name="fed_avg", magnitude_power=2.0'
  assert sweep_file(sweep, f'{base})').base.algorithm.name == 'fed_avg'
  with pytest.raises(UserError, match='`config.algorithm.x` is unknown'):
    sweep_file(sweep, f'{base}, x=1)')


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('', 'must define a function `get_sweep()`, but defines none. Correct'),
    (
      'def get_sweep():\n  return 1 / 0',
      'must run without errors, but raised ZeroDivisionError',
    ),
  ],
)
def test_wrong_get_sweep(tmp_path, sweep_file, text, words):
  sweep_file({'grid': _GRID})
  path = tmp_path / 'swept.py'
  path.write_text(path.read_text().partition('def get_sweep')[0] + text)
  with pytest.raises(UserError) as error:
    read_sweep_file(path)
  assert words in str(error.value)
  assert '\n' not in str(error.value)


def test_commands_are_understood():
  from tff_fedfish.cli import evaluate
  from tff_fedfish.cli.main import _Parser

  parser = _Parser()
  evaluate.add_arguments(parser)
  every = {
    'fractions': [0.5],
    'client_split': 'participating',
    'held_out_from': 0.25,
    'max_clients': 5,
    'max_sequences_per_client': 6,
    'sequence_length': 7,
    'split_unit': 'documents',
    'personalization_epochs': 8,
    'learning_rate': 9.5,
    'barrier': True,
  }
  request = evaluations.parse_evaluation(every)
  output, command = request.command(_RUN, 'corpora/c4')
  assert output == _RUN / 'evaluations' / 'c4'
  arguments = vars(parser.parse_args(command[1:]))
  assert arguments['checkpoint'] == str(_RUN)
  assert arguments['fractions'] == (0.5,)
  for name in every.keys() - {'fractions'}:
    assert arguments[name] == every[name]
  # Nothing that the command takes is missing here.
  assert set(every) == arguments.keys() - {'checkpoint', 'data', 'output'}


def test_another_corpus_under_a_name():
  request = evaluations.parse_evaluation(
    {'data': 'c/sotu', 'name': 'transfer', 'max_clients': None}
  )
  output, command = request.command(_RUN, 'corpora/c4')
  assert output.name == 'transfer'
  # Options at their defaults are left out.
  assert command == [
    *('evaluate', '--checkpoint', str(_RUN), '--data', 'c/sotu'),
    *('--output', str(output), '--max_clients=all'),
  ]
