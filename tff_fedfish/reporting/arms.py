"""Arms: runs that differ in their seeds only, taken together."""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.methods import registry
from tff_fedfish.reporting import keys
from tff_fedfish.reporting.runs import (
  HELD_OUT,
  Measured,
  Row,
  Run,
  Seeds,
  Subject,
  is_finite,
  shared_seeds,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Arm(Measured):
  """Runs that differ in seeds only; a single run is an arm, too.

  Its metrics are means over the runs, in the rounds that all of them have.
  """

  label: str
  """Unique among the arms of a report, such as 'FedFish, E = 8'."""
  runs: tuple[Run, ...]
  """At least one."""

  @property
  def first(self) -> Run:
    """Any of the runs, for what they have in common."""
    return self.runs[0]

  @property
  def num_seeds(self) -> int:
    """Number of seeds; runs that repeat the noise only are of one."""
    return len({shared_seeds(run.seeds) for run in self.runs})

  @property
  def diverged_seeds(self) -> set[Seeds]:
    """Seeds whose run stopped as it diverged."""
    return {shared_seeds(r.seeds) for r in self.runs if r.has_diverged}

  @property
  def train_config(self) -> TrainConfig:
    """The config; seeds, and what changes no result, are those of one run."""
    return self.first.train_config

  @property
  def is_baseline(self) -> bool:
    """Whether the method is the one that others are compared with."""
    return self.algorithm == registry.BASELINE.name

  @functools.cached_property
  def metrics(self) -> tuple[Row, ...]:
    """Rows of metrics.csv.

    A mean is None unless all runs have a value, and NaN where one is not
    finite.
    """
    if len(self.runs) == 1:
      return self.first.metrics
    by_round = [{row['round']: row for row in r.metrics} for r in self.runs]
    means = []
    for round_num in sorted(set.intersection(*map(set, by_round))):
      rows = [rows_of_run[round_num] for rows_of_run in by_round]
      row = {
        name: _mean_or_nan([r.get(name) for r in rows]) for name in rows[0]
      }
      means.append({**row, 'round': round_num})
    return tuple(means)

  @functools.cached_property
  def timings(self) -> tuple[Row, ...]:
    """Rows of timings.csv of all runs."""
    return tuple(itertools.chain(*(run.timings for run in self.runs)))


def find_arms(runs: Sequence[Run]) -> list[Arm]:
  """Returns the runs that differ in seeds only as one arm each.

  They are ordered by method, local epochs and rounds. Of runs that are equal in
  their seeds, too, each has its own arm. Without repetitions: an arm for each
  run, in their order.
  """
  seen: collections.Counter = collections.Counter()

  def key(run):
    kind = keys.repetition_key(run)
    seen[kind, run.seeds] += 1
    return kind, seen[kind, run.seeds]

  groups = list(keys.grouped(runs, key).values())
  if all(len(group) == 1 for group in groups):
    return [Arm(run.label, (run,)) for run in runs]
  labels = _group_labels([group[0] for group in groups])
  arms = [
    Arm(label + _diverged(group), tuple(group))
    for label, group in zip(labels, groups, strict=True)
  ]
  methods = list(dict.fromkeys(arm.method for arm in arms))
  return sorted(
    arms,
    key=lambda arm: (
      methods.index(arm.method),
      arm.num_local_epochs or 0,
      arm.num_rounds,
    ),
  )


def subjects(runs: Iterable[Run]) -> list[Subject]:
  """Returns held-out clients, then those of further parts and other corpora."""
  scored = {run.subject_of(e) for run in runs for e in run.evaluations}
  return [HELD_OUT, *sorted(scored - {HELD_OUT, None})]


def mean(values: Sequence[float | None]) -> float | None:
  """Returns the mean; None unless all values are finite."""
  if not values or not all(map(is_finite, values)):
    return None
  return sum(values) / len(values)


def _mean_or_nan(values: Sequence[float | None]) -> float | None:
  if None in values:
    return None
  found = mean(values)
  return math.nan if found is None else found


def _group_labels(runs: Sequence[Run]) -> list[str]:
  """Returns 'FedFish, E = 8' with what else tells it from another one."""
  words: dict[Run, list[str]] = {}
  for same in keys.grouped(runs, lambda run: run.base_label).values():
    words |= zip(same, keys.differing_words(same), strict=True)
  labels = [', '.join([run.base_label, *words[run]]) for run in runs]
  counts = collections.Counter(labels)
  # Equal in all that counts: only the directory is left.
  return [
    f'{label} ({run.name})' if counts[label] > 1 else label
    for label, run in zip(labels, runs, strict=True)
  ]


def _diverged(runs: Sequence[Run]) -> str:
  count = sum(run.has_diverged for run in runs)
  share = f'{count} of {len(runs)} ' if len(runs) > 1 else ''
  return f' ({share}diverged)' if count else ''
