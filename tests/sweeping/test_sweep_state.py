"""sweep.json: what it holds, and sweeps that it does not fit."""

import json

import pytest

from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import sweep_runs, sweep_state

_SWEEP = {
  'grid': {'algorithm.name': ['fed_avg'], 'seeds.model_seed': [1, 2]},
  'evaluate': [{'max_clients': 3}],
}


def _write(workdir, file):
  workdir.mkdir(exist_ok=True)
  runs = [*sweep_runs.expand_search(file), *sweep_runs.expand_arms(file)]
  found = sweep_state.SweepState(workdir, file, runs)
  found.write()
  return found


def _read(workdir):
  return json.loads((workdir / 'sweep.json').read_text())


def _error(workdir, file):
  with pytest.raises(UserError) as error:
    sweep_state.require_same_sweep(workdir, file)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_what_is_recorded(sweep_file, tmp_path):
  search = {'settings': {'server.learning_rate': [0.5, 2]}, 'num_rounds': 3}
  file = sweep_file({**_SWEEP, 'learning_rate_search': search})
  found = _write(tmp_path / 'w', file)
  found.update(['fed_avg-seed2'], status=sweep_state.DONE)
  found.update(['search/server_lr0.5'], status=sweep_state.FAILED)
  found.update(['search/server_lr2'], score=4.5)
  found.choices.append({'chosen': {'server.learning_rate': 2}})
  arm = sweep_runs.expand_arms(file)[0]
  arm = sweep_runs.with_rates(file, arm, {'server.learning_rate': 2})
  found.update([arm.name], settings=arm.point | arm.rates)
  found.write()
  values = _read(tmp_path / 'w')
  assert values['schema_version'] == 1
  assert values['base']['training']['num_rounds'] == 30
  assert values['grid'] == _SWEEP['grid']
  assert values['budget'] == ['fixed_rounds']
  assert values['evaluate'][0]['max_clients'] == 3
  assert values['search_runs'] == [
    {
      'name': name,
      'settings': {'server.learning_rate': rate},
      'num_rounds': 3,
      'score': score,
      'status': status,
      'directory': f'search/{name}',
    }
    for name, rate, score, status in (
      ('server_lr0.5', 0.5, None, 'failed'),
      ('server_lr2', 2, 4.5, 'waiting'),
    )
  ]
  assert values['learning_rates'] == [{'chosen': {'server.learning_rate': 2}}]
  assert values['arms'] == [
    {
      'name': f'fed_avg-seed{seed}',
      'settings': {
        'seeds.model_seed': seed,
        'algorithm.name': 'fed_avg',
        **rates,
      },
      'budgets': ['fixed_rounds'],
      'num_rounds': 30,
      'status': status,
      'directory': f'arms/fed_avg-seed{seed}',
    }
    for seed, rates, status in (
      (1, {'server.learning_rate': 2}, 'waiting'),
      (2, {}, 'done'),
    )
  ]
  assert [path.name for path in (tmp_path / 'w').iterdir()] == ['sweep.json']


def test_a_new_directory_fits(sweep_file, tmp_path):
  sweep_state.require_same_sweep(tmp_path / 'missing', sweep_file(_SWEEP))


def test_the_same_sweep_and_one_with_more_values_fit(sweep_file, tmp_path):
  workdir = tmp_path / 'w'
  _write(workdir, sweep_file(_SWEEP))
  sweep_state.require_same_sweep(workdir, sweep_file(_SWEEP))
  grid = {'seeds.model_seed': [3, 2, 1], 'algorithm.name': ['x', 'fed_avg']}
  sweep_state.require_same_sweep(workdir, sweep_file({**_SWEEP, 'grid': grid}))


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    (
      {'grid': {'algorithm.name': ['fed_fish'], 'seeds.model_seed': [2]}},
      "`grid` had the value 1 of 'seeds.model_seed' as well; `grid` had the "
      'value "fed_avg" of \'algorithm.name\' as well',
    ),
    (
      {'grid': {'algorithm.name': ['fed_avg'], 'seeds.cohort_seed': [1, 2]}},
      "`grid` had 'seeds.model_seed' as well; `grid` now has "
      "'seeds.cohort_seed', too",
    ),
    (
      {'budget': 'fixed_compute'},
      '`budget` was ["fixed_rounds"] and now is ["fixed_compute"]',
    ),
    (
      {'reference_local_epochs': 2},
      '`reference_local_epochs` was 1 and now is 2',
    ),
    ({'evaluate': []}, '`evaluate` was [{"data": null'),
    (
      {
        'learning_rate_search': {
          'settings': {'server.learning_rate': [1.0]},
          'num_rounds': 1,
        }
      },
      '`learning_rate_search` was null and now is {"settings"',
    ),
  ],
)
def test_another_sweep(sweep_file, tmp_path, changes, words):
  workdir = tmp_path / 'w'
  _write(workdir, sweep_file(_SWEEP))
  error = _error(workdir, sweep_file({**_SWEEP, **changes}))
  assert (
    f'`--workdir` {str(workdir)!r} holds a sweep that differs from' in error
  )
  assert words in error
  assert 'Take that back (only values may be added to `grid`), or name' in error


def test_another_base(sweep_file, tmp_path):
  workdir = tmp_path / 'w'
  _write(workdir, sweep_file(_SWEEP))
  error = _error(
    workdir,
    sweep_file(
      _SWEEP,
      'config.server.learning_rate = 0.5',
      overrides=['--config.training.num_rounds=40'],
    ),
  )
  assert (
    'the base had server.learning_rate 0.001 and now has 0.5; the base had '
    'training.num_rounds 30 and now has 40'
  ) in error


def test_another_spelling_of_the_start(sweep_file, tmp_path, monkeypatch):
  def file(start):
    overrides = [f'--config.training.start_from={start}']
    return sweep_file(_SWEEP, overrides=overrides)

  monkeypatch.chdir(tmp_path)
  _write(tmp_path / 'w', file('models/a'))
  sweep_state.require_same_sweep(tmp_path / 'w', file(tmp_path / 'models/a'))
  assert (
    "the base had training.start_from 'models/a' and now has 'models/b'"
  ) in _error(tmp_path / 'w', file('models/b'))


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('{', 'must be what `fedfish sweep` wrote, but cannot be read (Expecting'),
    ('[]', '(it is no object). Restore the file, or name another --workdir.'),
    ('{"schema_version": 1}', "cannot be read ('base')"),
    ('{"schema_version": 2}', 'has `schema_version` 2, but this version of'),
    ('{}', 'has `schema_version` None'),
  ],
)
def test_damaged_record(sweep_file, tmp_path, text, words):
  file = sweep_file(_SWEEP)
  (tmp_path / 'sweep.json').write_text(text)
  assert words in _error(tmp_path, file)
