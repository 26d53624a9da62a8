"""Tests of summaries over clients against numbers by hand and known laws."""

import dataclasses

import numpy as np
import pytest

from tff_fedfish.evaluation import intervals


def test_mean_by_hand():
  summary = intervals.summarize(np.array([3.0, -1.0, 6.0, 0.0, 2.0]))
  assert summary.mean == pytest.approx(2.0)
  assert summary.ci_low < 2.0 < summary.ci_high
  assert summary.num_clients == 5
  assert summary.num_non_finite == 0


@pytest.mark.parametrize(
  ('losses', 'expected'),
  [
    ([3.0, 1.0], 3.0),
    (range(10), 9.0),
    # Two of eleven: (9 + 10) / 2.
    (range(11), 9.5),
    ([1.0, float('nan'), 2.0, float('inf')], 2.0),
    ([float('nan')], None),
    ([], None),
  ],
)
def test_worst_decile_by_hand(losses, expected):
  assert intervals.worst_decile(list(losses)) == expected


def test_interval_of_two_values_by_hand():
  # The mean of two draws from {0, 4} is 0, 2 or 4 with probability 1/4, 1/2,
  # 1/4: the lowest 2.5 % of the resamples are all 0, the highest 2.5 % all 4.
  # Scaled by t / 1.96 sqrt(n / (n - 1)): 12.7062 / 1.96 * 1.41421 = 9.1680.
  summary = intervals.summarize(np.array([0.0, 4.0]))
  ends = pytest.approx((2 - 2 * 9.1680, 2 + 2 * 9.1680), rel=1e-5)
  assert (summary.ci_low, summary.ci_high) == ends


@pytest.mark.parametrize('num_clients', [4, 8, 16])
def test_few_clients_without_a_difference(num_clients):
  # 5 % of 600 intervals leave out 0: 30 with a standard deviation of 5.3.
  # Without the scale 8 clients leave it out in 11 %.
  generator = np.random.RandomState(1)
  missed = 0
  for _ in range(600):
    found = intervals.summarize(generator.normal(size=num_clients))
    missed += not found.ci_low < 0 < found.ci_high
  assert 18 <= missed <= 46


def test_one_client():
  summary = intervals.summarize(np.array([2.5]))
  # It says nothing of other clients.
  assert (summary.mean, summary.ci_low, summary.ci_high) == (2.5, None, None)


def test_values_that_are_not_finite_are_counted():
  values = np.array([np.nan, 1.0, np.inf, 3.0, -np.inf])
  summary = intervals.summarize(values)
  expected = intervals.summarize(np.array([1.0, 3.0]))
  assert expected.mean == 2.0
  assert summary == dataclasses.replace(expected, num_non_finite=3)


@pytest.mark.parametrize('values', [[], [np.nan, np.inf]])
def test_nothing_to_summarize(values):
  summary = intervals.summarize(np.array(values))
  assert summary == intervals.ClientStatistics(
    num_clients=0, num_non_finite=len(values)
  )


def test_interval_has_the_analytic_width():
  # For n normal values the mean has the standard error s / sqrt(n), and the
  # interval is mean +- 1.96 s / sqrt(n). 2,000 resamples put the percentiles
  # within about 5 % of the width.
  values = np.random.RandomState(5).normal(3.0, 2.0, size=400)
  summary = intervals.summarize(values)
  half_width = 1.96 * values.std() / np.sqrt(400)
  assert summary.ci_low == pytest.approx(
    values.mean() - half_width, abs=0.1 * half_width
  )
  assert summary.ci_high == pytest.approx(
    values.mean() + half_width, abs=0.1 * half_width
  )


def test_memory_bound_does_not_change_the_result(monkeypatch):
  values = np.random.RandomState(2).normal(size=30)
  once = intervals.summarize(values)
  monkeypatch.setattr(intervals, '_MAX_DRAWS', 7 * 30)
  assert intervals.summarize(values) == once
  # Fewer draws than clients are still one resample at a time.
  monkeypatch.setattr(intervals, '_MAX_DRAWS', 1)
  assert intervals.summarize(values) == once


def test_paired_difference_by_hand():
  # Common clients: x 5 - 2 = 3, y 1 - 2 = -1; mean (3 - 1) / 2 = 1. z and the
  # two of w and v have no partner. Unpaired, the means would give 4 - 2 = 2.
  a = {b'y': 1.0, b'x': 5.0, b'z': 6.0}
  b = {b'x': 2.0, b'y': 2.0, b'w': 2.0, b'v': 2.0}
  summary = intervals.paired_difference({7: a}, {7: b})
  assert summary == {
    'mean': 1.0,
    # The ends of the bootstrap, -1 and 3, with the scale of two clients.
    'ci_low': pytest.approx(1 - 2 * 9.1680, rel=1e-5),
    'ci_high': pytest.approx(1 + 2 * 9.1680, rel=1e-5),
    'share_below_zero': 0.5,
    'seed_means': [1.0],
    'seed_low': None,
    'seed_high': None,
    'num_seeds': 1,
  }
  reordered = dict(reversed(a.items()))
  assert intervals.paired_difference({7: reordered}, {7: b}) == summary


def test_paired_difference_of_diverged_clients():
  a = {b'x': np.float64('inf'), b'y': np.float64('nan'), b'z': 2.0}
  b = {b'x': np.float64('inf'), b'y': 1.0, b'z': 1.5}
  summary = intervals.paired_difference({0: a}, {0: b})
  assert summary['mean'] == 0.5
  # Where it diverged in one seed, a client is left out in all.
  fine = {b'x': 1.0, b'y': 1.0, b'z': 1.0}
  summary = intervals.paired_difference({0: a, 1: fine}, {0: b, 1: fine})
  assert summary['mean'] == 0.25


def test_one_seed_is_the_bootstrap_over_clients():
  generator = np.random.RandomState(3)
  differences = generator.normal(size=50)
  a = {b'%02d' % i: value for i, value in enumerate(differences)}
  zeros = dict.fromkeys(a, 0.0)
  summary = intervals.paired_difference({1: a}, {1: zeros})
  expected = intervals.summarize(differences)
  for name in ('mean', 'ci_low', 'ci_high'):
    assert summary[name] == pytest.approx(getattr(expected, name), rel=1e-12)


def test_seeds_are_drawn_too():
  # Two clients whose difference is 1 with one seed and 5 with the other: a
  # resample holds both with probability 1/2, one of them alone with 1/4 each.
  a = {1: 3.0, 2: 5.0, 3: 9.0}
  b = {1: 2.0, 2: 0.0, 4: 0.0}
  a, b = (
    {seed: {b'x': value, b'y': value} for seed, value in side.items()}
    for side in (a, b)
  )
  summary = intervals.paired_difference(a, b)
  assert summary['mean'] == 3.0
  assert (summary['ci_low'], summary['ci_high']) == (1.0, 5.0)
  assert summary['num_seeds'] == 2


def test_interval_over_seeds_and_clients_has_the_analytic_width():
  # Of d[s, c] = u[s] + v[c], with rows and columns drawn independently, the
  # resampled mean has variance var(u) / S + var(v) / C.
  generator = np.random.RandomState(6)
  by_seed = generator.normal(0, 1, size=30)
  by_client = generator.normal(0, 2, size=200)
  a = {
    s: {b'%03d' % c: by_seed[s] + by_client[c] for c in range(200)}
    for s in range(30)
  }
  zeros = {s: dict.fromkeys(a[s], 0.0) for s in a}
  summary = intervals.paired_difference(a, zeros)
  half_width = 1.96 * np.sqrt(by_seed.var() / 30 + by_client.var() / 200)
  mean = by_seed.mean() + by_client.mean()
  assert summary['mean'] == pytest.approx(mean)
  assert summary['ci_low'] == pytest.approx(
    mean - half_width, abs=0.1 * half_width
  )
  assert summary['ci_high'] == pytest.approx(
    mean + half_width, abs=0.1 * half_width
  )


@pytest.mark.parametrize(
  ('a', 'b'),
  [
    ({}, {}),
    ({1: {b'x': 1.0}}, {2: {b'x': 1.0}}),
    ({1: {b'x': 1.0}}, {1: {b'y': 1.0}}),
  ],
)
def test_nothing_to_compare(a, b):
  summary = intervals.paired_difference(a, b)
  assert summary == {'mean': None}


class TestIntervalOverSeeds:
  def _difference(self, *means):
    """Two clients without any difference between them."""
    a = {seed: {b'a': m, b'b': m} for seed, m in enumerate(means)}
    zeros = {seed: {b'a': 0.0, b'b': 0.0} for seed in a}
    return intervals.paired_difference(a, zeros)

  def test_three_by_hand(self):
    found = self._difference(1.0, 2.0, 3.0)
    assert found['seed_means'] == [1, 2, 3]
    # 4.3027 / sqrt(3) = 2.4842; the bootstrap has the smallest and the largest.
    assert found['seed_low'] == pytest.approx(2 - 2.4842, abs=1e-4)
    assert found['seed_high'] == pytest.approx(2 + 2.4842, abs=1e-4)
    assert (found['ci_low'], found['ci_high']) == (1, 3)

  def test_two_have_none(self):
    found = self._difference(1.0, 2.0)
    assert found['seed_low'] is found['seed_high'] is None
