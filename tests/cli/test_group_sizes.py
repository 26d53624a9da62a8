"""Percentiles, shares and plots of group sizes."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from tff_fedfish.cli import group_sizes

_SIZES = st.lists(st.integers(0, 10**9), min_size=1, max_size=300).map(np.array)


def test_percentiles_by_hand():
  # 10 sizes: 10 % is 1 of them, 11 % is 2, since 1 of 10 is only 10 %.
  sizes = np.array([50, 1, 2, 3, 4, 5, 6, 7, 8, 1000])
  wanted = (0, 10, 11, 50, 90, 90.001, 99.999, 100)
  found = group_sizes.percentiles(sizes, wanted)
  assert found == [1, 1, 2, 5, 50, 1000, 1000, 1000]
  assert group_sizes.percentiles(np.array([], np.int64), (0, 50)) == []


@hypothesis.given(_SIZES, st.integers(0, 100_000))
def test_percentiles_by_definition(sizes, thousandths):
  (found,) = group_sizes.percentiles(sizes, [thousandths / 1000])
  assert found in sizes
  assert 100_000 * (sizes <= found).sum() >= thousandths * len(sizes)
  if thousandths:
    assert 100_000 * (sizes < found).sum() < thousandths * len(sizes)


def test_percentile_table():
  lines = group_sizes.percentile_table(
    {'num_examples': np.array([1, 2, 4]), 'num_words': np.array([7, 8, 10])}
  ).splitlines()
  assert lines[:2] == ['percentile,num_examples,num_words', '0,1,7']
  assert '50,2,8' in lines
  # (1 + 2 + 4) / 3 and 25 / 3.
  assert lines[-2:] == ['100,4,10', 'mean,2.333,8.333']


def test_top_shares_by_hand():
  # 150 groups of 1 and one of 50: 200 in all. 1 % of 151 is 1.51, so 2
  # groups of 51; 10 % is 15.1, so 16 groups of 65.
  sizes = np.array([1] * 100 + [50] + [1] * 50)
  assert [tuple(top) for top in group_sizes.top_shares(sizes)] == [
    ('1', 1, 0.25),
    ('10', 10, 59 / 200),
    ('100', 100, 149 / 200),
    ('1 %', 2, 51 / 200),
    ('10 %', 16, 65 / 200),
  ]
  # 10 % of 11 groups, 1.1, are 2; 1 % would be less than one.
  labels = [top.label for top in group_sizes.top_shares(np.arange(11))]
  assert labels == ['1', '10', '10 %']
  assert group_sizes.top_shares(np.zeros(2, np.int64)) == [('1', 1, 0.0)]
  assert group_sizes.top_shares(np.ones(1, np.int64)) == []


def test_tables_of_the_plots():
  # 11 groups: one of nothing, 8 of one word, one of 6 and one of 10.
  sizes = np.array([1] * 4 + [10, 0, 6] + [1] * 4)
  ranks, counts = group_sizes.group_size_plots('c4', {'num_words': sizes})
  points = ranks.table[['x', 'y']].to_numpy().tolist()
  assert points == [[1, 10], [2, 6], *([rank, 1] for rank in range(3, 11))]
  assert counts.table[['x', 'y', 'point']].to_numpy().tolist() == [
    [1, 8, '1 to 1'],
    [4, 1, '4 to 7'],
    [8, 1, '8 to 15'],
  ]
  words = (
    'Words per group: from 0 to 10, median 1, 90 % of the groups have at most '
    '6; of all words, the largest group holds 41.7 %, the largest 10 groups '
    '100.0 %, the largest 10 % of the groups 66.7 %. Not shown: 1 group '
    'without words.'
  )
  assert ranks.caption == f'The largest group has rank 1. {words}'
  assert counts.caption.endswith(words)


@pytest.mark.parametrize('sizes', [[0], [10**12, 1]])
def test_odd_sizes_are_drawn(sizes):
  plots = group_sizes.group_size_plots('$x^2$', {'num_words': np.array(sizes)})
  assert len(plots) == 2 * any(sizes)
  for plot in plots:
    assert len(plot.svg) < 200_000


def test_many_groups_are_a_small_picture():
  # A mark for each would take megabytes.
  sizes = {'num_words': 10**9 // np.arange(1, 100_001)}
  for plot in group_sizes.group_size_plots('c4', sizes):
    assert len(plot.svg) < 200_000
