"""Barriers of several rounds and seeds, FedFish against FedAvg."""

import pytest
from matplotlib import colors

from tff_fedfish.reporting import (
  barriers,
  loading,
)


def _write(
  root, write_run, write_evaluation, *, rounds, seeds=(1,), rates=None
):
  """Barriers of round r + 1: FedFish r / 10, FedAvg (r + seed) / 10."""
  directories = []
  for algorithm in ('fed_avg', 'fed_fish'):
    for seed in seeds:
      run = write_run(
        root / f'{algorithm}_{seed}',
        algorithm=algorithm,
        num_local_epochs=8,
        settings={
          'seeds.cohort_seed': seed,
          'server.learning_rate': (rates or {}).get(algorithm, 0.1),
        },
      )
      for r in rounds:
        barrier = (r + (seed if algorithm == 'fed_avg' else 0)) / 10
        write_evaluation(
          run,
          f'e{r}',
          round_num=r,
          barriers=((4.0, 4.0 + barrier, 0.2, 0.2 - barrier),) * 2,
        )
      directories.append(run)
  return loading.load_runs(directories)


def test_rounds_are_colours_and_means_are_large(
  tmp_path, write_run, write_evaluation, drawn
):
  runs = _write(tmp_path, write_run, write_evaluation, rounds=(1, 2))
  [loss, error] = barriers.barrier_scatters(runs)
  axes = drawn['barrier_loss'].axes[0]
  small = [line for line in axes.get_lines() if len(line.get_xdata()) == 2]
  small = [line for line in small if line.get_linestyle() == 'None']
  assert [list(line.get_xdata()) for line in small] == [
    pytest.approx([0.1, 0.1]),
    pytest.approx([0.2, 0.2]),
  ]
  large = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
  assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in large] == [
    pytest.approx((0.1, 0.2)),
    pytest.approx((0.2, 0.3)),
  ]
  # The first and the last colour of the scale.
  assert [colors.to_hex(line.get_color()) for line in large] == [
    '#440154',
    '#fde725',
  ]
  # An evaluation of round r replays round r + 1.
  assert 'Rounds: 2, 3.' in loss.caption
  assert 'E = 8: 4 of 4 (100 %)' in error.caption
  # Errors are in points.
  [first, *_] = [
    line
    for line in drawn['barrier_error'].axes[0].get_lines()
    if len(line.get_xdata()) == 1
  ]
  assert first.get_xdata()[0] == pytest.approx(10.0)


def test_seeds_are_paired_and_named_together(
  tmp_path, write_run, write_evaluation, drawn
):
  runs = _write(
    tmp_path,
    write_run,
    write_evaluation,
    rounds=(2,),
    seeds=(1, 2),
    # Each method has rates of its own.
    rates={'fed_fish': 0.2},
  )
  pairs = barriers.find_pairs(runs)
  assert [(p.run.name, p.baseline.name) for p in pairs] == [
    ('fed_fish_1', 'fed_avg_1'),
    ('fed_fish_2', 'fed_avg_2'),
  ]
  groups = barriers.group_pairs(pairs)
  assert {name: len(found) for name, found in groups.items()} == {'E = 8': 2}
  [loss, _] = barriers.barrier_scatters(runs)
  assert 'E = 8: 4 of 4 (100 %)' in loss.caption
  assert 'Rounds:' not in loss.caption


def test_only_rounds_of_both_are_paired(tmp_path, write_run, write_evaluation):
  average, fish = (
    write_run(tmp_path / name, algorithm=name)
    for name in ('fed_avg', 'fed_fish')
  )
  for run, rounds in ((average, (1, 2)), (fish, (2,))):
    for r in rounds:
      write_evaluation(
        run, f'e{r}', round_num=r, barriers=((4.0, 4.5, 0.2, 0.1),)
      )
  [pair] = barriers.find_pairs(loading.load_runs([average, fish]))
  assert pair.round_num == 3


def test_two_estimators_share_their_baseline(
  tmp_path, write_run, write_evaluation
):
  directories = []
  for algorithm, estimator in (
    ('fed_avg', 'extra_pass'),
    ('fed_fish', 'extra_pass'),
    ('fed_fish', 'last_epoch'),
  ):
    run = write_run(
      tmp_path / f'{algorithm}_{estimator}',
      algorithm=algorithm,
      settings={'algorithm.fisher_estimator': estimator},
    )
    write_evaluation(run, 'e', barriers=((4.0, 4.5, 0.2, 0.1),))
    directories.append(run)
  pairs = barriers.find_pairs(loading.load_runs(directories))
  assert [pair.baseline.name for pair in pairs] == ['fed_avg_extra_pass'] * 2
  assert list(barriers.group_pairs(pairs)) == [
    "E = 1, fisher_estimator = 'extra_pass'",
    "E = 1, fisher_estimator = 'last_epoch'",
  ]
