"""Sweep files: what they hold, and all that can be wrong with one."""

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.sweeping.sweep_file import SweepFile

_GRID = {'algorithm.name': ['fed_avg', 'fed_fish']}


def test_sweep_as_json(sweep_file):
  file = sweep_file({'grid': _GRID}, 'config.client_work.num_local_epochs = 3')
  assert file.to_json_dict() == {
    'grid': _GRID,
    'budget': ['fixed_rounds'],
    'reference_local_epochs': 3,
    'learning_rate_search': None,
    'evaluate': [],
  }
  assert file.base.client_work.num_local_epochs == 3


def test_all_problems_at_once(sweep_file):
  with pytest.raises(UserError) as error:
    sweep_file(
      {
        'gird': {},
        'budget': 'x',
        'reference_local_epochs': 0,
        'learning_rate_search': {},
        'evaluate': [{'of': 'x'}],
      }
    )
  message = str(error.value)
  assert message.startswith('Invalid sweep ')
  assert "swept.py': " in message
  for words in (
    '`gird` is unknown; known are budget, evaluate, grid, ',
    '`grid` must name at least one setting',
    "`budget` must be 'fixed_rounds' or",
    '`reference_local_epochs` must be an int of at least 1, found 0',
    "`learning_rate_search`: 'settings' is required",
    "`evaluate`, number 1: 'of' is unknown",
  ):
    assert words in message
  assert '\n' not in message


def test_a_method_twice_beside_settings_of_its_own(sweep_file):
  own = 'own_methods.magnitude_mean'
  base = 'config.algorithm = dict(name="fed_avg", magnitude_power=2.0)'
  grid = {'algorithm.name': ['fed_avg', own, own]}
  with pytest.raises(UserError) as error:
    sweep_file({'grid': grid}, base)
  assert str(error.value).endswith(
    f"swept.py': `grid` gives 'algorithm.name' the value {own!r} twice."
  )
  with pytest.raises(UserError, match='`config.algorithm.x` is unknown'):
    sweep_file(
      {'grid': {'algorithm.name': ['fed_avg', own]}},
      f'{base[:-1]}, x=1)',
    )


def test_varied_settings_are_not_overridden(sweep_file):
  with pytest.raises(
    UserError, match='`--config.algorithm.name` must be left out: `grid` in'
  ):
    sweep_file({'grid': _GRID}, overrides=['--config.algorithm.name=fed_avg'])
  search = {'settings': {'server.learning_rate': [1.0]}, 'num_rounds': 1}
  with pytest.raises(UserError, match='left out: `learning_rate_search` in'):
    sweep_file(
      {'grid': _GRID, 'learning_rate_search': search},
      overrides=['--config.server.learning_rate', '0.5'],
    )


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('', 'must define a function `get_sweep()`, but defines none. Correct'),
    ('get_sweep = 3', 'must define a function `get_sweep()`'),
    (
      'def get_sweep():\n  return 1 / 0',
      'must run without errors, but raised ZeroDivisionError: division by '
      'zero in line 4. Correct the file',
    ),
    (
      # Without `allow_dotted_keys`.
      "def get_sweep():\n  return C(dict(grid={'a.b': [1]}))",
      'but raised ValueError: ConfigDict does not accept dots',
    ),
    (
      'def get_sweep():\n  return []',
      'must return a dictionary, found list.',
    ),
  ],
)
def test_wrong_get_sweep(tmp_path, sweep_file, text, words):
  sweep_file({'grid': _GRID})
  head = (tmp_path / 'swept.py').read_text().partition('def get_sweep')[0]
  path = tmp_path / 'wrong.py'
  # Two lines, so that those of `text` are known.
  (tmp_path / 'head.py').write_text(head)
  path.write_text(
    'from runpy import run_path as run; from ml_collections import '
    'ConfigDict as C\n'
    f'get_config = run({str(tmp_path / "head.py")!r})["get_config"]\n'
    f'{text}\n'
  )
  with pytest.raises(UserError) as error:
    SweepFile(path)
  assert words in str(error.value)
  assert '\n' not in str(error.value)


def test_nested_config_dicts(tmp_path, sweep_file):
  sweep_file({'grid': _GRID})
  text = (tmp_path / 'swept.py').read_text().partition('def get_sweep')[0]
  path = tmp_path / 'nested.py'
  path.write_text(
    f'{text}def get_sweep():\n'
    '  sweep = ConfigDict(allow_dotted_keys=True)\n'
    f'  sweep.grid = ConfigDict({_GRID!r}, allow_dotted_keys=True)\n'
    '  sweep.evaluate = [ConfigDict(dict(max_clients=3))]\n'
    '  return sweep.lock()\n'
  )
  sweep = SweepFile(path)
  assert sweep.to_json_dict()['grid'] == _GRID
  assert sweep.evaluations[0].options == {'max_clients': 3}
