"""Differences over seeds, computed by hand."""

import math

import pandas as pd
import pytest

from tff_fedfish.reporting import over_seeds


def _curve(traffic, loss):
  rows = {'round': range(len(loss)), 'traffic': traffic, 'loss': loss}
  return pd.DataFrame(rows | {'accuracy': [1 - x for x in loss]})


def test_three_seeds():
  # Differences 1, 2, 6 with mean 3 and variance (4 + 1 + 9) / 2 = 7; the 97.5 %
  # quantile of t with 2 degrees of freedom is 4.302653.
  ours, theirs = {1: 3.0, 2: 5.0, 3: 2.0}, {3: -4.0, 2: 3.0, 1: 2.0, 4: 9.0}
  found = over_seeds.difference(ours, theirs)
  assert found.by_seed == {1: 1.0, 2: 2.0, 3: 6.0}
  assert found.mean == 3.0
  assert found.half_width == pytest.approx(4.302653 * math.sqrt(7 / 3))
  assert not found.leaves_out_zero
  assert over_seeds.difference(
    {s: 1 + s / 99 for s in ours}, {1: 0, 2: 0, 3: 0}
  )[2] == pytest.approx(4.302653 / 99 / math.sqrt(3))


@pytest.mark.parametrize('num_seeds', [1, 2])
def test_few_seeds_have_no_interval(num_seeds):
  ours, theirs = {1: 3.0, 2: 5.0}, dict.fromkeys(range(1, num_seeds + 1), 1.0)
  found = over_seeds.difference(ours, theirs)
  assert found.by_seed == dict(list({1: 2.0, 2: 4.0}.items())[:num_seeds])
  assert found.mean == num_seeds + 1
  assert found.half_width is None


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_seeds_that_diverged(value):
  ours, theirs = {1: 1.0, 2: 2.0, 3: value}, {1: 0.5, 2: 0.0, 3: 1.0}
  assert over_seeds.difference(ours, theirs) is None
  assert over_seeds.difference(theirs, ours) is None
  both = over_seeds.difference(ours, theirs | {3: value})
  assert both.by_seed == {1: 0.5, 2: 2.0}
  assert over_seeds.difference({1: 1.0}, {2: 1.0}) is None


def test_equal_traffic():
  # The dearer side ends at 40, the cheaper one at 20: the dearer is at 1 + 1/4
  # of -0.4 between 10 and 50 for seed 1, and at (3 + 1) / 2 for seed 2.
  cheap = {1: _curve([0, 20], [3, 0.7]), 2: _curve([0, 20], [3, 1.5])}
  dear = {1: _curve([50, 10], [0.6, 1]), 2: _curve([0, 40], [3, 1])}
  traffic, found = over_seeds.at_equal_traffic(cheap, dear)
  assert traffic == 20
  assert found.by_seed == pytest.approx({1: 0.7 - 0.9, 2: 1.5 - 2})
  traffic, found = over_seeds.at_equal_traffic(dear, cheap, 'accuracy')
  assert traffic == 20
  assert found.mean == pytest.approx(-0.35)


def test_curves_that_do_not_reach_the_traffic():
  late, early = {1: _curve([30, 40], [1, 1])}, {1: _curve([0, 20], [3, 1])}
  assert over_seeds.at_equal_traffic(late, early) == (20, None)
  diverged = {1: _curve([], [])}
  assert over_seeds.at_equal_traffic(diverged, early) == (20, None)
  traffic, found = over_seeds.at_equal_traffic(diverged, diverged)
  assert math.isnan(traffic)
  assert found is None


def test_curve_of_a_run():
  metrics = [
    {'round': 0, 'communication/total_units': 0, 'held_out/loss': 2.0},
    {'round': 1, 'communication/total_units': 3, 'held_out/loss': None},
    {
      'round': 2,
      'communication/total_units': 6,
      'communication/uplink_units': 4,
      'held_out/loss': 1.0,
      'held_out/accuracy': 0.5,
    },
  ]
  curve = over_seeds.curve_of(metrics)
  assert curve[['round', 'traffic', 'loss']].values.tolist() == [
    [0, 0, 2],
    [2, 6, 1],
  ]
  assert (
    over_seeds.curve_of(metrics, 'uplink_units')['traffic'].tolist()[1] == 4
  )
  assert curve['accuracy'].tolist()[1] == 0.5
  assert over_seeds.curve_of([]).empty
