"""Axes of a grid, their points, names of runs, and what can be wrong."""

import pytest

from tff_fedfish.sweeping import grid


def test_points_by_hand():
  axes = grid.parse_grid(
    {
      'client_work.num_local_epochs': [1, 16],
      'algorithm.name': ['fed_avg', 'fed_fish'],
      'seeds.model_seed, seeds.cohort_seed': [[1, 11], (2, 12)],
    }
  )
  # Seeds vary slowest: the whole comparison once, then once more.
  assert [axis.key for axis in axes] == [
    'seeds.model_seed,seeds.cohort_seed',
    'algorithm.name',
    'client_work.num_local_epochs',
  ]
  assert [tuple(point.values()) for point in grid.product(axes)] == [
    (1, 11, 'fed_avg', 1),
    (1, 11, 'fed_avg', 16),
    (1, 11, 'fed_fish', 1),
    (1, 11, 'fed_fish', 16),
    (2, 12, 'fed_avg', 1),
    (2, 12, 'fed_avg', 16),
    (2, 12, 'fed_fish', 1),
    (2, 12, 'fed_fish', 16),
  ]
  assert grid.product(()) == [{}]


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (None, '`grid` must name at least one setting'),
    ({}, 'must name at least one setting'),
    ({'name': [1]}, "keys such as 'section.setting', or several of them"),
    ({'a.b,': [[1, 2]]}, "found 'a.b,'"),
    ({'a.b': []}, "must give 'a.b' a list of values, found []"),
    ({'a.b': 'text'}, "must give 'a.b' a list of values, found 'text'"),
    ({'a.b,c.d': [[1, 2], [3]]}, 'lists of 2 values, one for each setting'),
    ({'a.b': [[1]]}, "must give 'a.b' numbers, strings, true, false or None"),
    ({'a.b': [2, 3, 2]}, "must give 'a.b' different values, found 2 twice"),
    ({'a.b': [1], 'a.b,c.d': [[1, 2]]}, "`grid` names 'a.b' twice"),
    (
      {'algorithm.name,seeds.cohort_seed': [['fed_avg', 1]]},
      "must not tie 'seeds.cohort_seed' to settings that are compared",
    ),
    (
      {'partition.alpha,seeds.partition_seed': [[0.1, 1]]},
      "'seeds.partition_seed' a key of its own",
    ),
    ({'training.num_rounds': [10]}, "leave 'training.num_rounds' to `budget`"),
  ],
)
def test_what_is_wrong_with_a_grid(values, words):
  with pytest.raises(ValueError) as error:
    grid.require_fair(grid.parse_grid(values))
  assert words in str(error.value)


@pytest.mark.parametrize(
  'key',
  ['seeds.cohort_seed,seeds.split_seed', 'algorithm.name,seeds.model_seed'],
)
def test_fair_ties(key):
  # The model's seed decides neither clients nor data.
  grid.require_fair(grid.parse_grid({key: [[1, 2]]}))


def _name(settings, num_rounds=None):
  """Returns the name at the only point of a grid."""
  axes = grid.parse_grid({key: [value] for key, value in settings.items()})
  [point] = grid.product(axes)
  return grid.run_name(axes, point, num_rounds)


@pytest.mark.parametrize(
  ('settings', 'name'),
  [
    (
      {
        'seeds.model_seed': 2,
        'algorithm.name': 'fed_fish',
        'client_work.num_local_epochs': 4,
      },
      'fed_fish-E4-seed2',
    ),
    (
      {'client_work.learning_rate': 0.1, 'server.learning_rate': 1e-7},
      'client_lr0.1-server_lr1e-07',
    ),
    # Tied seeds: those that equal the first go without saying.
    (
      {'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': (3, 4, 3)},
      'seed3-cohort_seed4',
    ),
    (
      {
        'algorithm.name,algorithm.fisher_reduction': ('fed_fish', 'mean'),
        'algorithm.relative_floor,algorithm.client_weighting': (0.0, 'uniform'),
      },
      'fed_fish-mean-floor0.0-uniform',
    ),
    ({'data.drop_short_block': True}, 'data_drop_short_block_true'),
    ({'engine.gpus_per_worker': None}, 'engine_gpus_per_worker_none'),
    # SHA-256 of 'corpora/c4' and of 'other/c4' begin with these digits.
    ({'data.directory': 'corpora/c4'}, 'data_directory_c4_3e67f0'),
    ({'data.directory': 'other/c4'}, 'data_directory_c4_6bcdad'),
    ({'data.directory': 'c4'}, 'data_directory_c4'),
    ({'data.directory': ''}, 'data_directory__e3b0c4'),
  ],
)
def test_name_by_hand(settings, name):
  assert _name(settings) == name


def test_rounds_come_before_the_seed():
  settings = {'algorithm.name': 'fed_avg', 'seeds.model_seed': 1}
  assert _name(settings, 30) == 'fed_avg-R30-seed1'


def test_long_values_are_cut_but_stay_apart():
  one, other = (_name({'data.directory': 'x' * 60 + end}) for end in 'ab')
  # 'data_directory_', 40 characters, '_' and 6 digits of a hash.
  assert len(one) == len(other) == 15 + 40 + 1 + 6
  assert one != other and one[:-6] == other[:-6]


def test_long_names_fit_into_a_directory(tmp_path):
  names = [f'data.setting_{i}' for i in range(4)]
  one, other = (
    _name(dict.fromkeys(names, 'x' * 60) | {'seeds.model_seed': seed})
    for seed in (1, 2)
  )
  # Temporary names have some 20 characters more.
  assert len(one) == len(other) == 207 and one != other
  (tmp_path / f'.{one}.json.12345678').mkdir()
