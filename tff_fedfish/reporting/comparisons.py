"""Methods compared on the same clients, with intervals over clients and seeds.

Runs are compared where they differ in the method only, as `match.py` says.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.reporting import match
from tff_fedfish.reporting.repetitions import (
  Scores,
  client_scores,
  paired_difference,
)
from tff_fedfish.reporting.runs import Run, subjects

# Of a `intervals.paired_difference`.
_NUMBERS = (
  *('mean', 'ci_low', 'ci_high', 'share_below_zero'),
  *('num_seeds', 'num_clients', 'seed_means'),
)
_COLUMNS = (
  *('setting', 'method', 'baseline', 'subject', 'fraction', 'measure'),
  *_NUMBERS,
)


def compare_methods(runs: Sequence[Run]) -> pd.DataFrame:
  """Returns all comparisons that the runs allow, on clients that both scored.

  Returns:
    The lines of comparisons.csv by setting, pair, subject and fraction, in the
    order of the runs; two for each, of the 'loss' (nats per token) and of the
    'accuracy' ([-1, 1]). Intervals are the wider, at either end, of the
    bootstrap over clients and seeds and of Student's t over three or more
    seeds; two seeds have none. `seed_means` has the difference of each seed,
    separated by spaces. `registry.BASELINE` is subtracted where it takes part,
    else the first method is. `setting` tells compared runs from other compared
    ones, such as 'E = 8'; '' if nothing does.
  """
  groups = match.grouped(runs, match.setting_of)
  labels = match.labels(list(map(dict, groups)))
  comparisons = []
  for setting, members in zip(labels, groups.values(), strict=True):
    variants = match.grouped(members, match.method_of)
    # Of runs with equal seeds the first.
    by_seeds = [
      {run.seeds: run for run in reversed(found)} for found in variants.values()
    ]
    named = zip(match.method_names(list(variants)), by_seeds, strict=True)
    for first, second in itertools.combinations(named, 2):
      # The baseline comes last; without it the first method does.
      pair = sorted((second, first), key=_is_baseline)
      comparisons += _compare(setting, *pair)
  return pd.DataFrame(comparisons, columns=_COLUMNS, dtype=object)


def verdict(row: Any) -> str:
  """Returns which has the lower mean loss, if the interval leaves no doubt."""
  if row.ci_high is None:
    return 'undecided'
  if row.ci_high < 0:
    return f'{row.method} lower'
  return f'{row.baseline} lower' if row.ci_low > 0 else 'undecided'


def shown_interval(row: Any, spec: str, scale: float) -> str:
  """Returns the interval of a line of `compare_methods` as text.

  Two seeds have their differences instead. Numbers are scaled, and shown by a
  format such as '%+.4f'.
  """
  numbers, between = [row.ci_low, row.ci_high], ' to '
  if row.ci_low is None:
    numbers, between = map(float, row.seed_means.split()), ' and '
  text = between.join(spec % (scale * number) for number in numbers)
  return text.replace('-', '−')


def honest_difference(
  scores: Scores, baseline: Scores, name: str
) -> dict[str, Any]:
  """Returns a paired difference whose interval does not rest on few seeds.

  It is `repetitions.paired_difference` with the interval that `compare_methods`
  describes, and `seed_means` as a text.
  """
  found = paired_difference(scores, baseline, name)
  low, high = found['ci_low'], found['ci_high']
  if found['seed_low'] is not None:
    low, high = min(low, found['seed_low']), max(high, found['seed_high'])
  elif found['num_seeds'] == 2:
    low = high = None
  seed_means = ' '.join(map(repr, found['seed_means']))
  return found | {'ci_low': low, 'ci_high': high, 'seed_means': seed_means}


def _is_baseline(named: tuple[str, Mapping[str, Run]]) -> bool:
  return next(iter(named[1].values())).is_baseline


def _compare(setting, method, baseline) -> Iterator[tuple]:
  """Yields the lines for every subject and fraction that both have."""
  (name, runs), (baseline_name, baseline_runs) = method, baseline
  members = [*runs.values(), *baseline_runs.values()]
  for subject in subjects(members):
    evaluations = [e for run in members for e in run.evaluations_on(subject)]
    fractions = {f for e in evaluations for f in e.clients['fraction']}
    for fraction in sorted(fractions):
      sides = match.paired_evaluations(
        runs.values(), baseline_runs.values(), subject, fraction
      )
      scores = [client_scores(side, fraction) for side in sides]
      found = {
        measure: honest_difference(*scores, f'{measure}_after')
        for measure in ('loss', 'accuracy')
      }
      if all(difference['mean'] is not None for difference in found.values()):
        for measure, difference in found.items():
          numbers = (difference[number] for number in _NUMBERS)
          words = setting, name, baseline_name, str(subject), fraction, measure
          yield *words, *numbers
