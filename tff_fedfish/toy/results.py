"""Results of the rounds of all seeds: numbers, a file, and words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_fedfish.evaluation import statistics
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.toy import task
from tff_fedfish.version import __version__

METHODS = {'fed_avg': 'FedAvg', 'fed_fish': 'FedFish'}
"""The methods, in the order of columns, and how people write them."""

_SCHEMA_VERSION = 1
_BOOTSTRAP_SEED = 0
_OVERLAPS = {
  'full': 'full overlap',
  'partial': 'partial overlap',
  'none': 'no overlap',
}


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
  """One round of two clients.

  Attributes:
    support: A key of `task.SUPPORTS`.
    inputs: Float32 [2, num_examples].
    targets: Float32 [2, num_examples].
    local_mse: Mean squared error of each client's own trained model on its
      training data, float64 [2].
    global_mse: The same of the new global model, by method.
    curves: Float32 [len(task.GRID)], what the models of 'client_1' and
      'client_2' and of each method predict on `task.GRID`.
  """

  support: str
  inputs: np.ndarray
  targets: np.ndarray
  local_mse: np.ndarray
  global_mse: dict[str, np.ndarray]
  curves: dict[str, np.ndarray]

  def client_barriers(self, method: str) -> np.ndarray:
    """Returns L_i(theta_G) - L_i(theta_i) of each client, float64 [2]."""
    return self.global_mse[method] - self.local_mse

  def barrier(self, method: str) -> float:
    """Returns the Client-Server Barrier, equation 5 of the paper."""
    return float(self.client_barriers(method).mean())

  def constant_barrier(self) -> float:
    """Returns the barrier of the constant that fits both clients best.

    A global model above it predicts worse than one that does not look at x.
    """
    errors = np.square(self.targets - self.targets.mean()).mean(axis=1)
    return float((errors - self.local_mse).mean())


@dataclasses.dataclass(frozen=True)
class SupportSummary:
  """The barrier on one support over all seeds.

  Attributes:
    support: A key of `task.SUPPORTS`.
    barriers: Mean over seeds by method, with a bootstrap interval over seeds.
    constant_barrier: Mean over seeds of `Round.constant_barrier`.
    difference: Mean and interval of FedFish's barrier minus FedAvg's, seed by
      seed.
    num_lower: Seeds in which FedFish's barrier is the lower one.
    num_seeds: Seeds in all.
  """

  support: str
  barriers: dict[str, Interval]
  constant_barrier: float
  difference: Interval
  num_lower: int
  num_seeds: int

  @property
  def overlap(self) -> str:
    """The support as people say it, such as 'no overlap'."""
    return _OVERLAPS[self.support]


def summarize(seeds: Sequence[Sequence[Round]]) -> list[SupportSummary]:
  """Summarizes the rounds of all seeds, support by support.

  Args:
    seeds: For each seed its rounds, all in the same order of supports.

  Returns:
    One summary for each support.
  """
  summaries = []
  for rounds in zip(*seeds, strict=True):
    values = {
      method: np.array([round_.barrier(method) for round_ in rounds])
      for method in METHODS
    }
    differences = values['fed_fish'] - values['fed_avg']
    summaries.append(
      SupportSummary(
        support=rounds[0].support,
        barriers={name: _interval(found) for name, found in values.items()},
        constant_barrier=float(
          np.mean([round_.constant_barrier() for round_ in rounds])
        ),
        difference=_interval(differences),
        num_lower=int((differences < 0).sum()),
        num_seeds=len(rounds),
      )
    )
  return summaries


def to_json_dict(
  seeds: Sequence[Sequence[Round]], settings: task.ToySettings
) -> dict[str, Any]:
  """Returns settings, summaries and the numbers of every seed, for JSON.

  Args:
    seeds: See `summarize`.
    settings: With which they were run.
  """
  return {
    'schema_version': _SCHEMA_VERSION,
    'fedfish': __version__,
    'settings': {
      **dataclasses.asdict(settings),
      'target': task.TARGET,
      'supports': task.SUPPORTS,
    },
    'summary': {
      summary.support: {
        'barrier': {
          name: dataclasses.asdict(interval)
          for name, interval in summary.barriers.items()
        },
        'best_constant_barrier': summary.constant_barrier,
        'fed_fish_minus_fed_avg': dataclasses.asdict(summary.difference),
        'num_seeds_fed_fish_lower': summary.num_lower,
      }
      for summary in summarize(seeds)
    },
    'seeds': [
      {
        'seed': seed,
        'supports': {
          round_.support: _round_to_json_dict(round_) for round_ in rounds
        },
      }
      for seed, rounds in enumerate(seeds)
    ],
  }


def findings(summaries: Sequence[SupportSummary]) -> str:
  """Says in one sentence what was computed, and no more than that."""
  clauses = [
    f'with {summary.overlap} {signed(summary.barriers["fed_avg"].mean)} under '
    f'FedAvg and {signed(summary.barriers["fed_fish"].mean)} under FedFish, '
    f'which is lower in {summary.num_lower} of {summary.num_seeds} (best '
    f'constant: {signed(summary.constant_barrier)})'
    for summary in summaries
  ]
  num_seeds = summaries[0].num_seeds
  return (
    f'Mean Client-Server Barrier over {num_seeds} '
    f'seed{"s" * (num_seeds != 1)}, in mean squared error: '
    f'{"; ".join(clauses)}.'
  )


def largest_local_mse(seeds: Sequence[Sequence[Round]]) -> float:
  """Returns the error of the local model that fits its own data worst."""
  return max(float(r.local_mse.max()) for rounds in seeds for r in rounds)


def signed(number: float, spec: str = 'z.4f') -> str:
  """Returns a number with a minus sign where it is negative, not a hyphen."""
  return format(number, spec).replace('-', '−')


def _interval(values: np.ndarray) -> Interval:
  summary = statistics.summarize(values, seed=_BOOTSTRAP_SEED)
  return Interval(*(summary[name] for name in ('mean', 'ci_low', 'ci_high')))


def _round_to_json_dict(round_: Round) -> dict[str, Any]:
  return {
    'barrier': {method: round_.barrier(method) for method in METHODS},
    'best_constant_barrier': round_.constant_barrier(),
    'clients': [
      {
        'local_mse': float(round_.local_mse[client]),
        **{
          f'{method}_mse': float(round_.global_mse[method][client])
          for method in METHODS
        },
      }
      for client in range(len(round_.local_mse))
    ],
  }
