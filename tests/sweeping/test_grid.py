"""Axes of a grid, their points, and all that can be wrong with them."""

import pytest

from tff_fedfish.sweeping import grid


def _parse(values):
  problems = []
  axes = grid.parse_grid(values, problems)
  return axes, problems


def test_points_by_hand():
  axes, problems = _parse(
    {
      'client_work.num_local_epochs': [1, 16],
      'algorithm.name': ['fed_avg', 'fed_fish'],
      'seeds.model_seed, seeds.cohort_seed': [[1, 11], (2, 12)],
    }
  )
  assert not problems
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
  assert grid.product(axes)[5] == {
    'seeds.model_seed': 2,
    'seeds.cohort_seed': 12,
    'algorithm.name': 'fed_avg',
    'client_work.num_local_epochs': 16,
  }


def test_json_is_what_was_typed():
  values = {
    'algorithm.name': ['fed_avg'],
    'seeds.model_seed,seeds.cohort_seed': [[1, 11], [2, 12]],
  }
  axes, _ = _parse(values)
  assert grid.to_json_dict(axes) == values


def test_no_axes_have_one_point():
  assert grid.product(()) == [{}]


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (None, '`grid` must name at least one setting'),
    ({}, 'must name at least one setting'),
    ([('a.b', 1)], 'must name at least one setting'),
    ({'name': [1]}, "keys such as 'section.setting', or several of them"),
    ({'a.b.c': [1]}, "found 'a.b.c'"),
    ({'a.b,': [[1, 2]]}, "found 'a.b,'"),
    ({'a.b': 3}, "`grid` must give 'a.b' a list of values, found 3"),
    ({'a.b': []}, "must give 'a.b' a list of values, found []"),
    ({'a.b': 'text'}, "must give 'a.b' a list of values, found 'text'"),
    (
      {'a.b,c.d': [[1, 2], [3]]},
      "must give 'a.b,c.d' lists of 2 values, one for each setting, found [3]",
    ),
    ({'a.b,c.d': [1]}, 'lists of 2 values, one for each setting, found 1'),
    ({'a.b': [[1]]}, "must give 'a.b' numbers, strings, true, false or None"),
    ({'a.b': [2, 3, 2]}, "gives 'a.b' the value 2 twice"),
    ({'a.b': [1], 'a.b,c.d': [[1, 2]]}, "`grid` names 'a.b' twice"),
  ],
)
def test_what_is_wrong_with_a_grid(values, words):
  _, problems = _parse(values)
  assert len(problems) == 1
  assert words in problems[0]


def test_every_problem_is_named():
  _, problems = _parse({'a.b': 1, 'c.d': [], 'e.f': [5]})
  assert len(problems) == 2


@pytest.mark.parametrize(
  ('key', 'row', 'words'),
  [
    (
      'algorithm.name,seeds.cohort_seed',
      ['fed_avg', 1],
      "must not tie 'seeds.cohort_seed' to settings that are compared, found "
      "'algorithm.name,seeds.cohort_seed'",
    ),
    ('seeds.split_seed,server.optimizer', [1, 'sgd'], "'seeds.split_seed'"),
    ('server.optimizer,seeds.shuffle_seed', ['sgd', 1], "'seeds.shuffle_seed'"),
    (
      'partition.alpha,seeds.partition_seed',
      [0.1, 1],
      "'seeds.partition_seed' a key of its own",
    ),
    ('training.num_rounds', 10, "leave 'training.num_rounds' to `budget`"),
  ],
)
def test_unfair_grids(key, row, words):
  axes, problems = _parse({key: [row]})
  assert not problems
  grid.require_fair(axes, problems)
  assert len(problems) == 1
  assert words in problems[0]


@pytest.mark.parametrize(
  'key',
  ['seeds.cohort_seed,seeds.split_seed', 'algorithm.name,seeds.model_seed'],
)
def test_fair_ties(key):
  # The model's seed decides neither clients nor data.
  axes, problems = _parse({key: [[1, 2]]})
  grid.require_fair(axes, problems)
  assert not problems
