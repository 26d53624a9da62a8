"""Pairs at equal bytes: the curve of each side at the traffic that both reach.

The curves are those of training: the sample of held-out clients that is scored
every few rounds, as a mean over clients.
"""

import dataclasses
import math
from collections.abc import Sequence

import pandas as pd

from tff_fedfish.reporting import keys, over_seeds
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.comparisons import (
  Comparison,
  find_diverged,
)
from tff_fedfish.reporting.estimates import (
  MEASURES,
  Difference,
  Estimate,
)
from tff_fedfish.reporting.pairs import Pair
from tff_fedfish.reporting.runs import HELD_OUT, Seeds, shared_seeds

_TRAFFIC = 'communication/total_units'


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AtEqualBytes(Difference):
  """A pair after equally many models up and down.

  Intervals are Student's t over three seeds or more.
  """

  pair: Pair
  traffic: float
  """Models that a client that takes part in every round sends and receives."""

  @property
  def num_seeds(self) -> int:
    """Seeds that both sides have."""
    loss = self.differences['loss']
    return len(loss.by_seed) if loss else 0


def compare(comparisons: Sequence[Comparison]) -> list[AtEqualBytes]:
  """Returns the pairs whose traffic differs and whose curves share a sample."""
  pairs = dict.fromkeys(c.pair for c in comparisons)
  rows = (_compare(pair) for pair in pairs)
  return [row for row in rows if row]


def _compare(pair: Pair) -> AtEqualBytes | None:
  arms = pair.arms
  totals = [arm.last(_TRAFFIC) for arm in arms]
  # Traffic is in models, which are as large only where they are the same.
  samples = {
    keys.curve_key(arm.first) + keys.model_key(arm.first) for arm in arms
  }
  if len(samples) > 1 or None in totals or totals[0] == totals[1]:
    return None
  curves = [_curves(arm) for arm in arms]
  diverged, problems = find_diverged(pair)
  seeds = (curves[0].keys() & curves[1].keys()) - diverged
  curves = [{s: own[s] for s in sorted(seeds, key=repr)} for own in curves]
  traffic, differences = math.nan, dict.fromkeys(MEASURES)
  for measure in MEASURES:
    traffic, found = over_seeds.at_equal_traffic(*curves, measure)
    differences[measure] = found and _estimate(found)
  if not math.isfinite(traffic) or not (problems or differences['loss']):
    return None
  has_choice = pair.chosen_on == HELD_OUT
  if has_choice:
    differences = {
      m: d and d.without_interval() for m, d in differences.items()
    }
  return AtEqualBytes(
    pair=pair,
    traffic=traffic,
    problem=', '.join(problems),
    has_choice=has_choice,
    differences=differences,
  )


def _curves(arm: Arm) -> dict[Seeds, pd.DataFrame]:
  by_seed = keys.grouped(arm.runs, lambda run: shared_seeds(run.seeds))
  curves = {
    seeds: over_seeds.curve_of(Arm(arm.label, tuple(runs)).metrics)
    for seeds, runs in by_seed.items()
  }
  return {seeds: curve for seeds, curve in curves.items() if len(curve)}


def _estimate(found: over_seeds.SeedDifference) -> Estimate:
  ends = {}
  if (half_width := found.half_width) is not None:
    ends = {'low': found.mean - half_width, 'high': found.mean + half_width}
  return Estimate(
    mean=found.mean, by_seed=tuple(found.by_seed.values()), **ends
  )
