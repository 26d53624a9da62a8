"""Who is compared with whom: arms, pairs of arms, their evaluations.

The rules are the keys of `keys.py`; everything that compares asks here.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.methods import registry
from tff_fedfish.reporting import keys
from tff_fedfish.reporting.runs import (
  HELD_OUT,
  Measured,
  NamedEvaluation,
  Row,
  Run,
  Subject,
  is_finite,
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
    """Number of runs."""
    return len(self.runs)

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
    """Rows of metrics.csv; a mean is None unless all runs have a value."""
    if len(self.runs) == 1:
      return self.first.metrics
    by_round = [{row['round']: row for row in r.metrics} for r in self.runs]
    means = []
    for round_num in sorted(set.intersection(*map(set, by_round))):
      rows = [rows_of_run[round_num] for rows_of_run in by_round]
      row = {name: mean([r.get(name) for r in rows]) for name in rows[0]}
      means.append({**row, 'round': round_num})
    return tuple(means)

  @functools.cached_property
  def timings(self) -> tuple[Row, ...]:
    """Rows of timings.csv of all runs."""
    return tuple(itertools.chain(*(run.timings for run in self.runs)))


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """Two arms that differ in the method, its optimizers and seeds only."""

  setting: str
  """Difference from pairs of other settings, such as 'E = 8'; or ''."""
  method: str
  """Name of the method with what tells its variants apart."""
  baseline: str
  """Name of what is subtracted: `registry.BASELINE` where it takes part."""
  arm: Arm
  baseline_arm: Arm

  @property
  def is_against_baseline(self) -> bool:
    """Whether another method is compared with `registry.BASELINE`."""
    return self.baseline_arm.is_baseline and not self.arm.is_baseline


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


def find_pairs(arms: Sequence[Arm]) -> list[Pair]:
  """Returns all pairs of methods at equal settings, in the order of the arms.

  Of arms that are equal but for their seeds the first counts. The baseline, or
  without it the first method, is the one that is subtracted.
  """
  groups = keys.grouped(arms, lambda arm: keys.setting_key(arm.first))
  labels = keys.differing_labels(list(groups))
  pairs = []
  for setting, members in zip(labels, groups.values(), strict=True):
    variants: dict[keys.Key, Arm] = {}
    for arm in members:
      variants.setdefault(keys.method_key(arm.first), arm)
    named = zip(
      keys.method_names(list(variants)), variants.values(), strict=True
    )
    for sides in itertools.combinations(named, 2):
      # The baseline comes last; without it the first method does.
      sides = sorted(reversed(sides), key=lambda side: side[1].is_baseline)
      (method, arm), (baseline, baseline_arm) = sides
      pairs.append(Pair(setting, method, baseline, arm, baseline_arm))
  return pairs


def paired_evaluations(
  pair: Pair, subject: Subject, fraction: float
) -> tuple[dict[str, NamedEvaluation], dict[str, NamedEvaluation]]:
  """Returns evaluations of equal key, by the seeds that both arms have.

  Of several keys this is the one that most seeds have on both sides, then the
  one of the latest round; no evaluation where there is none.

  Args:
    pair: The arms.
    subject: The clients that were scored.
    fraction: The fraction of their data that was personalized on.
  """
  by_key: dict[keys.Key, list[dict[str, NamedEvaluation]]] = {}
  for side, arm in enumerate((pair.arm, pair.baseline_arm)):
    for run in arm.runs:
      for evaluation in run.evaluations:
        if run.subject_of(evaluation) == subject and (
          fraction in set(evaluation.clients['fraction'])
        ):
          key = keys.evaluation_key(run, evaluation, fraction)
          sides = by_key.setdefault(key, [{}, {}])
          sides[side].setdefault(run.seeds, evaluation)

  def rank(sides):
    shared = sides[0].keys() & sides[1].keys()
    places = [(e.round_num, name_key(e.name)) for e in sides[0].values()]
    return len(shared), max(places, default=())

  one, other = max(by_key.values(), key=rank, default=[{}, {}])
  return (
    {seeds: e for seeds, e in one.items() if seeds in other},
    {seeds: e for seeds, e in other.items() if seeds in one},
  )


def subjects(runs: Iterable[Run]) -> list[Subject]:
  """Returns held-out clients, then those of further parts and other corpora."""
  found = {run.subject_of(e) for run in runs for e in run.evaluations}
  return [HELD_OUT, *sorted(found - {HELD_OUT, None})]


def mean(values: Sequence[float | None]) -> float | None:
  """Returns the mean; None unless all values are finite."""
  if not all(map(is_finite, values)):
    return None
  return sum(values) / len(values)


def name_key(name: str) -> list[tuple[int, str]]:
  """Returns a key that sorts 'run10' after 'run9'."""
  parts = ''.join(c if c.isdecimal() else f' {c} ' for c in name).split()
  return [(int(p), '') if p.isdecimal() else (-1, p) for p in parts]


def _group_labels(runs: Sequence[Run]) -> Iterator[str]:
  """Yields 'FedFish, E = 8' with what else tells it from another one."""
  for run in runs:
    same = [other for other in runs if other.base_label == run.base_label]
    differing = keys.differing_labels(list(map(keys.repetition_key, same)))
    own = differing[same.index(run)]
    label = f'{run.base_label}, {own}' if own else run.base_label
    # Equal in all that counts: only the directory is left.
    yield f'{label} ({run.name})' if differing.count(own) > 1 else label


def _diverged(runs: Sequence[Run]) -> str:
  count = sum(run.has_diverged for run in runs)
  share = f'{count} of {len(runs)} ' if len(runs) > 1 else ''
  return f' ({share}diverged)' if count else ''
