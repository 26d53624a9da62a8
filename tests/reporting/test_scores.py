"""Samples of scores, and their means, against numbers by hand."""

import os

import pytest
from report_runs import (
  read_report,
  write_evaluation,
  write_run,
  write_scored,
  write_sweep,
)

from tff_fedfish.reporting.estimates import estimate
from tff_fedfish.reporting.runs import HELD_OUT


def _shown(directories, fraction=0.0):
  return read_report(directories).shown_of(HELD_OUT, fraction)


def test_one_seed_has_an_interval_over_clients():
  # All of one of two clients is drawn in a quarter of the resamples.
  found = estimate({'1': {b'x': 3.0, b'y': -1.0}})
  assert (found.mean, found.low, found.high) == (1.0, -1.0, 3.0)
  assert (found.by_seed, found.share_below_zero) == ((1.0,), 0.5)
  assert not found.is_finding


def test_two_seeds_have_no_interval_but_both_means():
  found = estimate(
    {'1': {b'x': 3.0}, '2': {b'x': 5.0}}, {'1': {b'x': 1.0}, '2': {b'x': 1.0}}
  )
  assert (found.mean, found.low, found.high) == (3.0, None, None)
  assert found.by_seed == (2.0, 4.0)
  assert not found.is_finding


def test_three_seeds_have_students_t():
  found = estimate({str(n): {b'x': float(n)} for n in (1, 2, 3)})
  # Standard deviation 1: 2 -/+ 4.3027 / sqrt(3).
  assert (found.low, found.high) == pytest.approx((-0.4842, 4.4842), abs=1e-4)
  assert found.is_finding


def test_the_wider_of_two_intervals():
  # The three seeds' means are all 1, but the two clients have 3 and -1.
  found = estimate(dict.fromkeys('123', {b'x': 3.0, b'y': -1.0}))
  assert (found.low, found.high) == (-1.0, 3.0)


def test_without_a_client_there_is_no_estimate():
  assert estimate({'1': {}}) is None


def test_means_over_seeds(tmp_path):
  gains = {('fed_avg', 4, 2): 1.0, ('fed_fish', 4, 2): 2.0}
  directories = write_sweep(tmp_path, gains)
  average, fish = _shown(directories)
  assert (average.arm.label, fish.arm.label) == (
    'FedAvg, E = 4',
    'FedFish, E = 4',
  )
  # 8 - 1 - (0, 0.1, 0.2) is 7.0, 6.9, 6.8, whose standard deviation is 0.1:
  # 6.9 -/+ 4.3027 * 0.1 / sqrt(3) = 0.2484.
  loss = average.estimates['loss']
  assert loss.by_seed == pytest.approx((7.0, 6.9, 6.8))
  assert (loss.mean, loss.low, loss.high) == pytest.approx(
    (6.9, 6.6516, 7.1484), abs=1e-4
  )
  # Accuracies are (10 - loss) / 100.
  average, _ = _shown(directories, 0.5)
  assert average.estimates['accuracy'].mean == pytest.approx(0.041)
  assert average.losses.tolist() == pytest.approx([5.9, 5.9])
  assert average.mean_by_client('loss_before') == pytest.approx([6.9, 6.9])


def test_only_clients_of_equal_evaluations_are_averaged(tmp_path):
  runs = [
    write_scored(tmp_path / f'{seed}', losses, seed=seed)
    for seed, losses in enumerate([(6.0, 7.0), (8.0, 1.0), (8.0, 1.0)])
  ]
  # Later, of one seed, with other fine-tuning: alone in its sample.
  write_evaluation(
    runs[0],
    'z',
    client_ids=('a', 'b'),
    losses={0.0: (1.0,) * 2, 0.5: (1.0,) * 2},
    personalization={'sequence_length': 64},
  )
  findings = read_report(runs)
  [sample] = findings.shown_of(HELD_OUT, 0.0)
  assert sample.estimates['loss'].by_seed == (6.5, 4.5, 4.5)
  [sample] = findings.shown_of(HELD_OUT, 0.5)
  assert len(sample.by_seed) == 1
  assert len(findings.samples) == 3


@pytest.mark.parametrize(
  'other, is_shown',
  [
    # More clients, then more rows, then the newest; a later round before all.
    ({'client_ids': tuple('abc'), 'losses': {0.0: (9.0,) * 3}}, True),
    ({'client_ids': tuple('a'), 'losses': {0.0: (9.0,)}}, False),
    ({'rows': 5}, True),
    ({'rows': 3}, False),
    ({'age': 1}, False),
    ({'age': -1}, True),
    ({'round_num': 1, 'client_ids': tuple('abc')}, False),
  ],
  ids=str,
)
def test_which_of_several_evaluations_counts(tmp_path, other, is_shown):
  run = write_scored(tmp_path / 'run', (6.0, 6.0))
  options = {'client_ids': ('a', 'b'), **other}
  rows, age = options.pop('rows', 4), options.pop('age', 0)
  losses = {0.0: (9.0,) * len(options['client_ids'])}
  # Names say nothing.
  path = write_evaluation(run, 'a', **({'losses': losses} | options))
  table = path / 'per_client.csv'
  table.write_text(table.read_text().replace(',4,', f',{rows},'))
  first = (run / 'evaluations' / 'e' / 'summary.json').stat().st_mtime
  for file in path.iterdir():
    os.utime(file, (first - age, first - age))
  [sample] = _shown([run])
  assert sample.estimates['loss'].mean == (9.0 if is_shown else 6.0)


def test_clients_that_are_not_finite_are_counted(tmp_path):
  losses = {0.0: (6.0,) * 4, 0.5: (5.0, 9.0, float('nan'), 6.0)}
  run = write_scored(tmp_path / 'run', losses)
  [before], [after] = _shown([run]), _shown([run], 0.5)
  assert before.problem == ''
  assert after.problem == '3 of 4 clients finite'
  assert after.finite_clients == [b'a', b'b', b'd']
  # Raised for b, lost for c; d has the same.
  assert (before.hurt, after.hurt) == (None, 0.5)


def test_metrics_are_means_in_common_rounds(tmp_path):
  runs = [
    write_run(
      tmp_path / str(seed),
      held_out_losses=losses,
      num_rounds=9,
      settings={'seeds.cohort_seed': seed},
    )
    for seed, losses in ((1, (8.0, 7.0, None)), (2, (7.0, 6.0, 5.0, 4.0)))
  ]
  [arm] = read_report(runs).arms
  # Round 2 has no score of seed 1, round 3 no row: neither has a mean.
  assert arm.series('round', 'held_out/loss') == [(0, 7.5), (1, 6.5)]
  assert arm.last('communication/uplink_units') == 2.0


@pytest.mark.parametrize('with_barrier', [0, 1])
def test_a_barrier_of_one_seed(tmp_path, with_barrier):
  barriers = {with_barrier: ((4.0, 4.5, 0.2, 0.1),)}
  runs = [
    write_scored(
      tmp_path / str(seed),
      (6.0,),
      seed=seed,
      evaluation={'barriers': barriers.get(seed, ())},
    )
    for seed in (0, 1)
  ]
  columns = {column.key: column for column in read_report(runs).columns}
  [value] = columns['barrier/loss'].values.values()
  assert value.mean == 0.5
