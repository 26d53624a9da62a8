"""Names of runs, which tell all settings apart and never change."""

import pytest

from tff_fedfish.sweeping import grid


def _name(settings, num_rounds=None):
  """Returns the name at the only point of a grid."""
  problems = []
  axes = grid.parse_grid(
    {key: [value] for key, value in settings.items()}, problems
  )
  assert not problems
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
    ({'seeds.model_seed,seeds.cohort_seed': (3, 3)}, 'seed3'),
    (
      {'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': (3, 4, 3)},
      'seed3-cohort_seed4',
    ),
    ({'client_work.optimizer': 'adamw'}, 'client_adamw'),
    (
      {'algorithm.name,server.optimizer': ('fed_avg', 'sgd')},
      'fed_avg-sgd',
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
    (
      {'client_splits.held_out_fraction': 0.2},
      'client_splits_held_out_fraction0.2',
    ),
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
  one, other = (_name({'data.directory': 'x' * 60 + end}) for end in ('a', 'b'))
  # 'data_directory_', 40 characters, '_' and 6 digits of a hash.
  assert len(one) == len(other) == 15 + 40 + 1 + 6
  assert one != other
  assert one[:-6] == other[:-6]
