"""Differences between two sides over the seeds that both have.

A side is a mapping from the seed to a score, or to the curve of a run: a table
of evaluated rounds with the columns `round`, `traffic` (models sent), `loss`
and `accuracy`. A run that diverged has the score NaN and an empty curve.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from tff_fedfish.evaluation.intervals import t_half_width

Scores = Mapping[Hashable, float]
Curves = Mapping[Hashable, pd.DataFrame]

_COLUMNS = ('round', 'traffic', 'loss', 'accuracy')


class SeedDifference(NamedTuple):
  """The mean difference over paired seeds."""

  by_seed: dict[Hashable, float]
  """Difference of each seed; at least one."""
  mean: float
  half_width: float | None
  """Half of Student's 95 % t interval; None: fewer than three seeds."""

  @property
  def leaves_out_zero(self) -> bool:
    """Whether there is an interval and it leaves out 0."""
    return self.half_width is not None and abs(self.mean) > self.half_width


def difference(ours: Scores, theirs: Scores) -> SeedDifference | None:
  """Returns `ours - theirs` over the seeds of both.

  A seed that is not finite on both sides leaves the comparison. None: no seed
  is left, or one is not finite on one side only. A mean over the others would
  favor that side.
  """
  by_seed = {}
  for seed in [seed for seed in ours if seed in theirs]:
    are_finite = [math.isfinite(side[seed]) for side in (ours, theirs)]
    if all(are_finite):
      by_seed[seed] = float(ours[seed]) - float(theirs[seed])
    elif any(are_finite):
      return None
  if not by_seed:
    return None
  values = list(by_seed.values())
  return SeedDifference(by_seed, statistics.mean(values), t_half_width(values))


def at_equal_traffic(
  ours: Curves, theirs: Curves, measure: str = 'loss'
) -> tuple[float, SeedDifference | None]:
  """Returns the traffic that all curves reach, and the difference there.

  Curves are interpolated linearly between evaluations.

  Args:
    ours: Curve by seed.
    theirs: The same of the other side; subtracted.
    measure: Column, 'loss' or 'accuracy'.

  Returns:
    The traffic is NaN where no seed of both has a curve. The difference is as
    `difference` returns it; a curve that begins beyond the traffic has no value
    there, as an empty one.
  """
  seeds = [seed for seed in ours if seed in theirs]
  sides = [{seed: side[seed] for seed in seeds} for side in (ours, theirs)]
  last = [c['traffic'].max() for side in sides for c in side.values() if len(c)]
  traffic = float(min(last, default=math.nan))
  scores = (
    {seed: _value_at(curve, traffic, measure) for seed, curve in side.items()}
    for side in sides
  )
  return traffic, difference(*scores)


def _value_at(curve: pd.DataFrame, traffic: float, measure: str) -> float:
  if curve.empty:
    return math.nan
  curve = curve.sort_values('traffic')
  columns = (curve[name].to_numpy(float) for name in ('traffic', measure))
  return float(np.interp(traffic, *columns, left=math.nan))


def curve_of(
  metrics: Iterable[Mapping[str, float | int | None]], unit: str = 'total_units'
) -> pd.DataFrame:
  """Returns the curve of a run.

  Args:
    metrics: Rows of metrics.csv; those without an evaluation are skipped.
    unit: 'total_units', models up and down, or 'uplink_units', models up.
  """
  names = ('round', f'communication/{unit}')
  names += ('held_out/loss', 'held_out/accuracy')
  rows = [row for row in metrics if row.get('held_out/loss') is not None]
  values = [[row.get(name) for name in names] for row in rows]
  return pd.DataFrame(values, columns=_COLUMNS, dtype=float)
