"""How large the groups of a corpus are, and how unequal: numbers and plots.

The plots are those of Charles et al. (2023), "Towards Federated Foundation
Models: Scalable Dataset Pipelines for Group-Structured Learning".
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tff_fedfish.files import csv_file
from tff_fedfish.printing import count

if TYPE_CHECKING:
  from tff_fedfish.reporting.plots import Plot

MEASURES = ('num_examples', 'num_words', 'num_bytes')
"""Counts of a group; the columns of the index."""

PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)
"""Quantiles that are printed."""

# Those of the table: the tails of such distributions are long.
_TABLE_PERCENTILES = (
  *(0, 1, 5, 10, 25, 50, 75, 90, 95, 99),
  *(99.9, 99.99, 99.999, 100),
)
# Percentiles are exact multiples of this part of a percent.
_PARTS = 1000
_MAX_POINTS = 600


class TopShare(NamedTuple):
  """Fraction of the whole that the largest groups hold."""

  label: str
  """Which groups: '10' are ten groups, '1 %' is a share of all."""
  num_groups: int
  """How many these are."""
  share: float
  """Their part of the sum over all groups, from 0 to 1."""


def percentiles(sizes: np.ndarray, wanted: Sequence[float]) -> list[int]:
  """Returns percentiles that occur as sizes, not values between two of them.

  Args:
    sizes: int64 [num_groups].
    wanted: From 0 to 100; whole thousandths.

  Returns:
    For each p the smallest size that at least p % of the groups do not exceed;
    none if there is no group.
  """
  if not len(sizes):
    return []
  ranks = [
    max(-(-round(p * _PARTS) * len(sizes) // (100 * _PARTS)), 1) for p in wanted
  ]
  ordered = np.sort(sizes)
  return [int(ordered[rank - 1]) for rank in ranks]


def top_shares(sizes: np.ndarray) -> list[TopShare]:
  """Returns what the largest 1, 10, 100, 1 % and 10 % of the groups hold.

  Sizes are int64 [num_groups]. A number of groups that the corpus does not
  exceed is left out, and so is a percent of less than one group; a percent is
  rounded up to whole groups.
  """
  total = len(sizes)
  wanted = {'1': 1, '10': 10, '100': 100}
  for percent in (1, 10):
    if total * percent >= 100:
      wanted[f'{percent} %'] = -(-total * percent // 100)
  ordered = np.sort(sizes)[::-1]
  whole = max(int(ordered.sum()), 1)
  return [
    TopShare(label, number, int(ordered[:number].sum()) / whole)
    for label, number in wanted.items()
    if number < total
  ]


def percentile_table(measure_to_sizes: Mapping[str, np.ndarray]) -> str:
  """Returns a CSV file: a row for each percentile, a column for each measure.

  Sizes are int64 [num_groups]. The last row is their mean.
  """
  columns = [
    percentiles(sizes, _TABLE_PERCENTILES)
    for sizes in measure_to_sizes.values()
  ]
  means = [
    round(float(sizes.mean()), 3) if len(sizes) else None
    for sizes in measure_to_sizes.values()
  ]
  rows = [*zip(_TABLE_PERCENTILES, *columns, strict=False), ('mean', *means)]
  return csv_file(['percentile', *measure_to_sizes], rows)


def group_size_plots(
  title: str, measure_to_sizes: Mapping[str, np.ndarray]
) -> list['Plot']:
  """Returns the sizes of the groups against their rank, and as a histogram.

  Args:
    title: What the corpus is.
    measure_to_sizes: Sizes int64 [num_groups] of at least one group by
      measure, such as 'num_words'; one panel for each. Groups of size 0 are
      left out, which the captions say.
  """
  # matplotlib and pandas take half a second.
  import pandas as pd

  from tff_fedfish.reporting.plots import plot

  ranks, counts, words = [], [], []
  for measure, sizes in measure_to_sizes.items():
    noun = measure.removeprefix('num_')
    shown = np.sort(sizes[sizes > 0])[::-1]
    ranks += [(f'{noun} per group', *point) for point in _by_rank(shown)]
    counts += [(f'{noun} per group', *point) for point in _counts(shown)]
    words.append(_words(sizes, noun))
    if len(shown) < len(sizes):
      num_without = count(len(sizes) - len(shown), 'group')
      words.append(f'Not shown: {num_without} without {noun}.')
  summary = ' '.join(words)
  columns = ['panel', 'x', 'y']
  plots = [
    plot(
      pd.DataFrame(ranks, columns=columns),
      name='group_sizes_by_rank',
      title=f'Size of the groups against their rank, {title}',
      caption=f'The largest group has rank 1. {summary}',
      kind='line',
      x='Rank of the group',
      y='',
      panels='y',
      log_x=True,
      log_y=True,
      places=0,
    ),
    plot(
      pd.DataFrame(counts, columns=[*columns, 'point']),
      name='group_sizes',
      title=f'How many groups are how large, {title}',
      caption='A point for groups of 1, of 2 to 3, of 4 to 7 and so on, at the '
      f'least of these sizes. {summary}',
      kind='line',
      x='',
      y='Groups',
      panels='x',
      log_x=True,
      log_y=True,
      places=0,
    ),
  ]
  return [one for one in plots if one]


def _by_rank(sizes: np.ndarray) -> list[tuple[int, int]]:
  """Returns ranks that are evenly spaced as drawn, and their sizes."""
  if not len(sizes):
    return []
  ranks = np.geomspace(1, len(sizes), _MAX_POINTS).round().astype(np.int64)
  return [(int(rank), int(sizes[rank - 1])) for rank in np.unique(ranks)]


def _counts(sizes: np.ndarray) -> list[tuple[int, int, str]]:
  """Returns 2^k, the groups of 2^k to 2^(k+1) - 1, and '2 to 3'."""
  if not len(sizes):
    return []
  exponents = np.frexp(sizes)[1] - 1
  return [
    (2**k, int(number), f'{2**k:,} to {2 ** (k + 1) - 1:,}')
    for k, number in enumerate(np.bincount(exponents))
    if number
  ]


def _words(sizes: np.ndarray, noun: str) -> str:
  """Returns the extremes, the median and what the largest groups hold."""
  low, median, upper, high = percentiles(sizes, (0, 50, 90, 100))
  names = {'1': 'group holds', '10': '10 groups', '100': '100 groups'}
  shares = [
    f'the largest {names.get(label, f"{label} of the groups")} '
    f'{100 * share:.1f} %'
    for label, _, share in top_shares(sizes)
  ]
  return (
    f'{noun.capitalize()} per group: from {low:,} to {high:,}, median '
    f'{median:,}, 90 % of the groups have at most {upper:,}'
    + (f'; of all {noun}, {", ".join(shares)}' if shares else '')
    + '.'
  )
