"""Methods compared on the same clients, with intervals over clients and seeds.

Runs are compared where they differ in the method alone: in the algorithm's
settings and in the learning rates, which every method needs its own of. Runs
that differ in seeds other than that of the clients' split are repetitions.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.evaluation import statistics
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.runs import Run, transfer_corpora
from tff_fedfish.reporting.settings import flatten

NUM_BOOTSTRAP = 2000
_BASELINE = 'fed_avg'
_SEEDS = ('seeds.model_seed', 'seeds.cohort_seed', 'seeds.shuffle_seed')
# What makes a method, and what says nothing of the numbers.
_METHOD = ('algorithm.', 'server.', 'client_work.learning_rate')
_IGNORED = ('schema_version', 'engine.', 'checkpoints.')
# FedAvg's configuration holds these, too.
_FED_FISH_ONLY = (
  'algorithm.fisher_estimator',
  'algorithm.fisher_reduction',
  'algorithm.relative_floor',
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
    accuracy: Likewise of the accuracies.
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
    runs. FedAvg is the baseline where it takes part, else the first method is.
  """
  groups: dict[Any, list[Run]] = {}
  for run in runs:
    groups.setdefault(_setting(run), []).append(run)
  labels = _labels([dict(key) for key in groups])
  comparisons = []
  for setting, members in zip(labels, groups.values(), strict=True):
    variants: dict[Any, dict[Any, Run]] = {}
    for run in members:
      repetitions = variants.setdefault(_method(run), {})
      repetitions.setdefault(_seeds(run), run)
    named = dict(zip(_names(variants), variants.values(), strict=True))
    for method, baseline in _pairs(named):
      comparisons += _compare(
        setting, method, baseline, named[method], named[baseline]
      )
  return comparisons


def _setting(run: Run) -> tuple:
  return tuple(
    (name, repr(value))
    for name, value in sorted(flatten(run.config).items())
    if not name.startswith((*_METHOD, *_IGNORED)) and name not in _SEEDS
  )


def _method(run: Run) -> tuple:
  return (run.method,) + tuple(
    (name, repr(value))
    for name, value in sorted(flatten(run.config).items())
    if name.startswith(_METHOD)
    and (run.algorithm == 'fed_fish' or name not in _FED_FISH_ONLY)
  )


def _seeds(run: Run) -> tuple:
  return tuple(repr(run.setting(*name.split('.'))) for name in _SEEDS)


def _labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
  """Returns for each setting the values in which it differs from others."""
  names = {
    'client_work.num_local_epochs': 'E',
    'training.num_rounds': 'rounds',
  }
  keys = dict.fromkeys(name for setting in settings for name in setting)
  differing = [
    key for key in keys if len({setting.get(key) for setting in settings}) > 1
  ]
  return [
    ', '.join(
      f'{names.get(key, key)} = {setting.get(key, "(not set)")}'
      for key in differing
    )
    for setting in settings
  ]


def _names(variants: Mapping[tuple, Any]) -> list[str]:
  """Returns unique names: the method, and what tells its variants apart."""
  names = []
  for variant in variants:
    values = dict(variant[1:])
    others = [dict(v[1:]) for v in variants if v[0] == variant[0]]
    differing = [
      f'{name.partition(".")[2]} {value}'
      for name, value in values.items()
      if any(other.get(name) != value for other in others)
    ]
    names.append(
      f'{variant[0]} ({", ".join(differing)})' if differing else variant[0]
    )
  return names


def _pairs(named: Mapping[str, Mapping[Any, Run]]) -> Iterator[tuple[str, str]]:
  """Yields (method, baseline)."""
  is_baseline = {
    name: next(iter(runs.values())).algorithm == _BASELINE
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
        statistics.paired_difference(
          *(_values(side, fraction, name) for side in sides),
          num_bootstrap=NUM_BOOTSTRAP,
          seed=0,
        )
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
