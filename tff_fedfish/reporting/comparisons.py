"""Methods compared on the same clients, with intervals over clients and seeds.

Runs are compared where they differ in the method only, as `matching.py` says.
"""

import csv
import dataclasses
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.evaluation import statistics
from tff_fedfish.methods import registry
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.repetitions import NUM_BOOTSTRAP
from tff_fedfish.reporting.runs import Run, transfer_corpora
from tff_fedfish.reporting.tables import csv_text

# Of a `statistics.paired_difference`.
_NUMBERS = (
  *('mean', 'ci_low', 'ci_high', 'share_below_zero'),
  *('num_seeds', 'num_clients'),
)
_NAMES = (
  *('setting', 'method', 'baseline', 'subject', 'fraction', 'measure'),
  *_NUMBERS,
)


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
  groups: dict[Any, list[Run]] = {}
  for run in runs:
    groups.setdefault(matching.setting_of(run), []).append(run)
  labels = matching.labels([dict(key) for key in groups])
  comparisons = []
  for setting, members in zip(labels, groups.values(), strict=True):
    variants: dict[Any, dict[Any, Run]] = {}
    for run in members:
      repetitions = variants.setdefault(matching.method_of(run), {})
      repetitions.setdefault(matching.seeds_of(run), run)
    names = matching.method_names(list(variants))
    named = dict(zip(names, variants.values(), strict=True))
    for method, baseline in _pairs(named):
      comparisons += _compare(
        setting, method, baseline, named[method], named[baseline]
      )
  return comparisons


def paired_difference(
  evaluations: Mapping[Any, Evaluation],
  baseline: Mapping[Any, Evaluation],
  fraction: float,
  name: str,
) -> statistics.Summary:
  """Returns `statistics.paired_difference` of two sides' evaluations.

  Args:
    evaluations: Seed -> what was evaluated.
    baseline: The run that is subtracted.
    fraction: Share of each client's data that was personalized on.
    name: Of a client's score, such as 'loss_after'.
  """
  return statistics.paired_difference(
    _values(evaluations, fraction, name),
    _values(baseline, fraction, name),
    num_bootstrap=NUM_BOOTSTRAP,
    seed=0,
  )


def comparisons_csv(comparisons: Sequence[Comparison]) -> str:
  """Returns the differences one a line, in full precision.

  Args:
    comparisons: Of `compare_methods`; differences of accuracies are in [-1, 1].
  """
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(_NAMES)
  for row in comparisons:
    for measure, summary in (('loss', row.loss), ('accuracy', row.accuracy)):
      words = (row.setting, row.method, row.baseline, row.subject)
      writer.writerow(
        [
          *map(csv_text, words),
          row.fraction,
          measure,
          *(summary[name] for name in _NUMBERS),
        ]
      )
  return file.getvalue()


def _pairs(named: Mapping[str, Mapping[Any, Run]]) -> Iterator[tuple[str, str]]:
  """Yields (method, baseline)."""
  is_baseline = {
    name: next(iter(runs.values())).algorithm == registry.BASELINE.name
    for name, runs in named.items()
  }
  for first, second in itertools.combinations(named, 2):
    if is_baseline[second] and not is_baseline[first]:
      yield first, second
    else:
      yield second, first


def _compare(setting, method, baseline, runs, baseline_runs):
  """Yields a comparison for every subject and fraction that both have."""
  everyone = [*runs.values(), *baseline_runs.values()]
  subjects = [('held-out clients', Run.held_out)]
  subjects += [
    (f'clients of {corpus}', lambda run, corpus=corpus: run.transfer(corpus))
    for corpus in transfer_corpora(everyone)
  ]
  for subject, choose in subjects:
    sides = [
      {seed: found for seed, run in side.items() if (found := choose(run))}
      for side in (runs, baseline_runs)
    ]
    fractions = {
      client.fraction
      for side in sides
      for evaluation in side.values()
      for client in evaluation.clients
    }
    for fraction in sorted(fractions):
      loss, accuracy = (
        paired_difference(*sides, fraction, name)
        for name in ('loss_after', 'accuracy_after')
      )
      if loss['mean'] is not None and accuracy['mean'] is not None:
        yield Comparison(
          method, baseline, setting, subject, fraction, loss, accuracy
        )


def _values(
  evaluations: Mapping[Any, Evaluation], fraction: float, name: str
) -> dict[Any, dict[bytes, float]]:
  """Returns seed -> client -> value."""
  return {
    seed: {
      client.client_id: getattr(client, name)
      for client in evaluation.clients_at(fraction)
    }
    for seed, evaluation in evaluations.items()
  }
