"""How large the groups of a corpus are, and how unequal, in numbers.

`group_size_plots.py` draws the same; this module needs no matplotlib.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tff_fedfish.files import csv_file

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
    TopShare(label, count, int(ordered[:count].sum()) / whole)
    for label, count in wanted.items()
    if count < total
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
