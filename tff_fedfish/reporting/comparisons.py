"""Methods compared on the same clients, with intervals over clients and seeds.

Runs are compared where they differ in the method only, as `matching.py` says.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tff_fedfish.evaluation import statistics
from tff_fedfish.methods import registry
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.csv_files import csv_file
from tff_fedfish.reporting.repetitions import client_scores, paired_difference
from tff_fedfish.reporting.runs import Run, subjects

# Of a `statistics.paired_difference`.
_NUMBERS = (
  *('mean', 'ci_low', 'ci_high', 'share_below_zero'),
  *('num_seeds', 'num_clients'),
)
_WORDS = ('setting', 'method', 'baseline', 'subject', 'fraction')


@dataclasses.dataclass(frozen=True)
class Comparison:
  """One method minus another, on the clients that both were scored on.

  Attributes:
    method: The one, such as 'FedFish'.
    baseline: The other, such as 'FedAvg'.
    setting: What tells the compared runs from other compared ones, such as
      'E = 8'; '' if nothing does.
    subject: Whose clients, such as 'held-out clients'.
    fraction: Share of each client's data that was personalized on.
    loss: `statistics.paired_difference` of the losses, in nats per token.
    accuracy: The same of the accuracies.
  """

  method: str
  baseline: str
  setting: str
  subject: str
  fraction: float
  loss: statistics.Summary
  accuracy: statistics.Summary

  @property
  def verdict(self) -> str:
    """Which has the lower mean loss, if the interval leaves no doubt."""
    if self.loss['ci_high'] < 0:
      return f'{self.method} lower'
    if self.loss['ci_low'] > 0:
      return f'{self.baseline} lower'
    return 'undecided'


def compare_methods(runs: Sequence[Run]) -> list[Comparison]:
  """Returns all comparisons that the runs allow.

  Args:
    runs: The runs of a report.

  Returns:
    Comparisons by setting, pair, subject and fraction, in the order of the
    runs. `registry.BASELINE` is subtracted where it takes part, else the first
    method is.
  """
  groups = matching.grouped(runs, matching.setting_of)
  labels = matching.labels(list(map(dict, groups)))
  comparisons = []
  for setting, members in zip(labels, groups.values(), strict=True):
    variants = matching.grouped(members, matching.method_of)
    # Of runs with equal seeds the first.
    by_seeds = [
      {run.seeds: run for run in reversed(found)} for found in variants.values()
    ]
    named = zip(matching.method_names(list(variants)), by_seeds, strict=True)
    for first, second in itertools.combinations(named, 2):
      is_swapped = _is_baseline(second) and not _is_baseline(first)
      pair = (first, second) if is_swapped else (second, first)
      comparisons += _compare(setting, *pair)
  return comparisons


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
  """Returns the differences one a line; those of accuracies in [-1, 1]."""
  return csv_file(
    (*_WORDS, 'measure', *_NUMBERS),
    (
      [
        *(getattr(row, name) for name in _WORDS),
        measure,
        *(getattr(row, measure)[name] for name in _NUMBERS),
      ]
      for row in comparisons
      for measure in ('loss', 'accuracy')
    ),
  )


def _is_baseline(named: tuple[str, Mapping[str, Run]]) -> bool:
  return next(iter(named[1].values())).algorithm == registry.BASELINE.name


def _compare(setting, method, baseline) -> Iterator[Comparison]:
  """Yields a comparison for every subject and fraction that both have."""
  (name, runs), (baseline_name, baseline_runs) = method, baseline
  for subject in subjects([*runs.values(), *baseline_runs.values()]):
    sides = [
      {
        seeds: e
        for seeds, run in side.items()
        if (e := run.evaluation(subject))
      }
      for side in (runs, baseline_runs)
    ]
    evaluations = [e for side in sides for e in side.values()]
    for fraction in sorted(
      {f for e in evaluations for f in e.clients['fraction']}
    ):
      scores = [client_scores(side, fraction) for side in sides]
      loss, accuracy = (
        paired_difference(*scores, measure)
        for measure in ('loss_after', 'accuracy_after')
      )
      if loss['mean'] is not None and accuracy['mean'] is not None:
        yield Comparison(
          name, baseline_name, setting, str(subject), fraction, loss, accuracy
        )
