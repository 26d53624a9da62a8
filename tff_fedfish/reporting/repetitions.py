"""Runs that differ in seeds only, as one run that holds their means.

Seeds and clients are drawn independently of each other and crossed in the
intervals (`evaluation/statistics.py`).
"""

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.evaluation import statistics
from tff_fedfish.evaluation.results import ClientEvaluation
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.evaluations import (
  Evaluation,
  FractionScore,
  Interval,
)
from tff_fedfish.reporting.reading import is_finite
from tff_fedfish.reporting.runs import Row, Run

NUM_BOOTSTRAP = 2000


def has_repetitions(runs: Sequence[Run]) -> bool:
  """Returns whether any two of the runs differ in seeds only."""
  return any(len(group) > 1 for group in _groups(runs))


def pool_repetitions(runs: Sequence[Run]) -> list[Run]:
  """Returns one run for all that differ in seeds only.

  Args:
    runs: The runs of a report.

  Returns:
    Runs with unique labels, by method, local epochs and rounds. A pooled run
    has the means over its `repetitions` in the rounds that all of them have,
    and an evaluation for each checkpoint and corpus that any of them was
    evaluated on. Without repetitions: the runs as they are, in their order.
  """
  groups = _groups(runs)
  if all(len(group) == 1 for group in groups):
    return list(runs)
  pooled = [
    _pool(group, label)
    for group, label in zip(groups, _group_labels(groups), strict=True)
  ]
  methods = list(dict.fromkeys(run.method for run in pooled))
  return sorted(
    pooled,
    key=lambda run: (
      methods.index(run.method),
      run.num_local_epochs or 0,
      run.num_rounds or 0,
    ),
  )


def with_seed(evaluation: Evaluation, seeds: Any) -> Evaluation:
  """Returns the evaluation of a single run with its seeds beside each mean.

  Args:
    evaluation: As it was read.
    seeds: `matching.seeds_of` its run.
  """

  def keep(interval: Interval | None) -> Interval | None:
    return interval and dataclasses.replace(
      interval, seed_means=((seeds, interval.mean),)
    )

  return dataclasses.replace(
    evaluation,
    fractions={
      fraction: FractionScore(keep(score.loss), keep(score.accuracy))
      for fraction, score in evaluation.fractions.items()
    },
  )


def _groups(runs):
  """Returns lists of runs; a second one with equal seeds has its own list."""
  groups: dict[Any, list[Run]] = {}
  seen: collections.Counter = collections.Counter()
  for run in runs:
    key = matching.setting_of(run), matching.method_of(run)
    seeds = matching.seeds_of(run)
    groups.setdefault((key, seen[key, seeds]), []).append(run)
    seen[key, seeds] += 1
  return list(groups.values())


def _group_labels(groups):
  """Returns 'FedFish, E = 8' with what else tells it from another one."""
  bases = [_base_label(group[0]) for group in groups]
  keys = [
    dict(matching.setting_of(group[0])) | dict(matching.method_of(group[0]))
    for group in groups
  ]
  found = []
  for group, base in zip(groups, bases, strict=True):
    same = [i for i, other in enumerate(bases) if other == base]
    rest = matching.labels([keys[i] for i in same])
    own = rest[same.index(len(found))]
    label = f'{base}, {own}' if own else base
    # Equal in all that counts: only the directory is left.
    if rest.count(own) > 1:
      label = f'{label} ({group[0].name})'
    found.append(label)
  return found


def _base_label(run):
  epochs = run.num_local_epochs
  return run.method if epochs is None else f'{run.method}, E = {epochs}'


def _pool(runs: Sequence[Run], label: str) -> Run:
  first = runs[0]
  if len(runs) == 1:
    return first.labelled(label)
  pooled = dataclasses.replace(
    first,
    name=f'{label}: {len(runs)} seeds',
    metrics=_mean_rows(runs),
    timings=tuple(row for run in runs for row in run.timings),
    evaluations=_pool_evaluations(runs),
    remarks=(),
    round_barriers={},
    repetitions=tuple(runs),
  )
  return pooled.labelled(label)


def _mean_rows(runs: Sequence[Run]) -> tuple[Row, ...]:
  """Returns the mean of each metric in the rounds that all runs have."""
  by_round = [{row['round']: row for row in run.metrics} for run in runs]
  rows = []
  for round_num in sorted(set.intersection(*map(set, by_round))):
    found = [rows_of_run[round_num] for rows_of_run in by_round]
    row = {name: _mean([r.get(name) for r in found]) for name in found[0]}
    rows.append({**row, 'round': round_num})
  return tuple(rows)


def _mean(values):
  """Returns the mean; None unless all values are finite."""
  if not all(map(is_finite, values)):
    return None
  return sum(values) / len(values)


def _pool_evaluations(runs: Sequence[Run]) -> tuple[Evaluation, ...]:
  by_key: dict[Any, dict[Any, Evaluation]] = {}
  for run in runs:
    for evaluation in sorted(run.evaluations, key=lambda e: e.name):
      key = (
        evaluation.kind,
        evaluation.corpus,
        evaluation.round_num,
        # Other fine-tuning is another measurement.
        json.dumps(evaluation.personalization, sort_keys=True),
      )
      by_key.setdefault(key, {})[matching.seeds_of(run)] = evaluation
  return tuple(map(_pool_one, by_key.values()))


def _pool_one(by_seeds: Mapping[Any, Evaluation]) -> Evaluation:
  """Returns the mean of one evaluation over the seeds that have it.

  Fractions that a seed lacks, or of which no client is common, are left out.
  """
  first = next(iter(by_seeds.values()))
  if len(by_seeds) == 1:
    return with_seed(first, next(iter(by_seeds)))
  fractions, clients, num_left_out = {}, [], 0
  evaluated = [set(e.fractions) for e in by_seeds.values()]
  for fraction in sorted(set.intersection(*evaluated)):
    rows = {
      seeds: {c.client_id: c for c in evaluation.clients_at(fraction)}
      for seeds, evaluation in by_seeds.items()
    }
    common = sorted(set.intersection(*map(set, rows.values())))
    num_left_out = max(
      num_left_out, len(set().union(*rows.values())) - len(common)
    )
    if not common:
      continue
    fractions[fraction] = FractionScore(
      *(
        crossed_interval(
          {s: {c: getattr(rows[s][c], name) for c in common} for s in rows}
        )
        for name in ('loss_after', 'accuracy_after')
      )
    )
    clients += [_mean_client([r[c] for r in rows.values()]) for c in common]
  evaluations = tuple(by_seeds.values())
  return dataclasses.replace(
    first,
    fractions=fractions,
    clients=tuple(clients),
    barrier=_pool_barriers(by_seeds),
    # Other seeds have other cohorts: there is no client to take a mean of.
    barrier_clients=(),
    num_non_finite_rows=sum(e.num_non_finite_rows for e in evaluations),
    has_barrier=any(e.has_barrier for e in evaluations),
    effective_clients=_pool_means(
      {seeds: e.effective_clients for seeds, e in by_seeds.items()}
    ),
    unknown_tokens=_mean([e.unknown_tokens for e in evaluations]),
    num_seeds=len(evaluations),
    num_left_out_clients=num_left_out,
  )


def crossed_interval(
  values: Mapping[Any, Mapping[bytes, float]],
) -> Interval | None:
  """Returns the mean over seeds and clients with its interval.

  Args:
    values: Seeds of a run -> a number per client; equal clients in all.

  Returns:
    The mean with the 95 % interval of the crossed bootstrap; None without a
    client.
  """
  nothing = {seeds: dict.fromkeys(row, 0.0) for seeds, row in values.items()}
  # What is left of a difference from 0 is the value itself.
  summary = statistics.paired_difference(
    values, nothing, num_bootstrap=NUM_BOOTSTRAP, seed=0
  )
  if summary['mean'] is None:
    return None
  return Interval(
    summary['mean'],
    summary['ci_low'],
    summary['ci_high'],
    tuple(
      (seeds, sum(row.values()) / len(row)) for seeds, row in values.items()
    ),
  )


def _mean_client(rows: Sequence[ClientEvaluation]) -> ClientEvaluation:
  names = ('loss_before', 'accuracy_before', 'loss_after', 'accuracy_after')
  return dataclasses.replace(
    rows[0], **{n: _mean([getattr(r, n) for r in rows]) for n in names}
  )


def _pool_barriers(by_seeds) -> dict[str, Interval]:
  pooled = {
    measure: _pool_means(
      {seeds: e.barrier.get(measure) for seeds, e in by_seeds.items()}
    )
    for measure in ('loss', 'error')
  }
  return {m: interval for m, interval in pooled.items() if interval}


def _pool_means(found: Mapping[Any, Interval | None]) -> Interval | None:
  """Returns the mean over the seeds that have one."""
  means = tuple((seeds, one.mean) for seeds, one in found.items() if one)
  if not means:
    return None
  mean = sum(value for _, value in means) / len(means)
  return Interval(mean, seed_means=means)
