"""Runs that differ in seeds only, as one run that holds their means.

Seeds and clients are drawn independently of each other and crossed in the
intervals (`evaluation/intervals.py`).
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.evaluation import intervals
from tff_fedfish.reporting import match
from tff_fedfish.reporting.evaluations import Evaluation, Interval
from tff_fedfish.reporting.runs import Row, Run, is_finite

NUM_BOOTSTRAP = 2000

Scores = Mapping[str, pd.DataFrame]
"""Seeds of a run -> its clients' rows, indexed by client."""


def pool_repetitions(runs: Sequence[Run]) -> list[Run]:
  """Returns one run for all that differ in seeds only, with unique labels.

  They are ordered by method, local epochs and rounds. A pooled run has the
  means over its `repetitions` in the rounds that all of them have, and an
  evaluation for each checkpoint and corpus that any of them was evaluated on.
  Without repetitions: the runs as they are, in their order.
  """
  groups = _groups(runs)
  if all(len(group) == 1 for group in groups):
    return list(runs)
  pooled = list(map(_pool, groups, _group_labels(groups)))
  methods = list(dict.fromkeys(run.method for run in pooled))
  return sorted(
    pooled,
    key=lambda run: (
      methods.index(run.method),
      run.num_local_epochs or 0,
      run.num_rounds or 0,
    ),
  )


def client_scores(
  evaluations: Mapping[str, Evaluation], fraction: float
) -> Scores:
  """Returns the clients' rows at a fraction."""
  return {
    seeds: evaluation.clients_at(fraction).set_index('client_id')
    for seeds, evaluation in evaluations.items()
  }


def paired_difference(
  scores: Scores, baseline: Scores, name: str
) -> dict[str, Any]:
  """Returns `intervals.paired_difference` of a score, such as 'loss_after'."""
  return intervals.paired_difference(
    *({s: c[name].to_dict() for s, c in x.items()} for x in (scores, baseline)),
    num_bootstrap=NUM_BOOTSTRAP,
    seed=0,
  )


def mean_over_seeds(found: Mapping[str, Interval | None]) -> Interval | None:
  """Returns the mean over the seeds that have one."""
  means = tuple((seeds, one.mean) for seeds, one in found.items() if one)
  if not means:
    return None
  return Interval(sum(m for _, m in means) / len(means), seed_means=means)


def _groups(runs):
  """Returns lists of runs; a second one with equal seeds has its own list."""
  seen: collections.Counter = collections.Counter()

  def key(run):
    kind = match.setting_of(run), match.method_of(run)
    seen[kind, seeds := run.seeds] += 1
    return kind, seen[kind, seeds]

  return list(match.grouped(runs, key).values())


def _group_labels(groups):
  """Yields 'FedFish, E = 8' with what else tells it from another one."""
  firsts = [group[0] for group in groups]
  for first in firsts:
    same = [run for run in firsts if run.base_label == first.base_label]
    found = match.labels(
      [dict(match.setting_of(r)) | dict(match.method_of(r)) for r in same]
    )
    own = found[same.index(first)]
    label = f'{first.base_label}, {own}' if own else first.base_label
    # Equal in all that counts: only the directory is left.
    yield f'{label} ({first.name})' if found.count(own) > 1 else label


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
  by_key: dict[tuple, dict[str, Evaluation]] = {}
  for run in runs:
    # Some of a run may differ in their fractions or the barrier only.
    seen: collections.Counter = collections.Counter()
    for e in sorted(run.evaluations, key=lambda e: e.name):
      seen[key := match.evaluation_key(run, e)] += 1
      by_key.setdefault((key, seen[key]), {})[run.seeds] = e
  return tuple(map(_pool_one, by_key.values()))


def _pool_one(by_seeds: Mapping[str, Evaluation]) -> Evaluation:
  """Returns the mean over seeds, of the fractions and clients that all have."""
  first, *others = evaluations = tuple(by_seeds.values())
  if not others:
    return first
  pooled, clients, num_left_out = {}, [], 0
  fractions = set.intersection(*(set(e.fractions) for e in evaluations))
  for fraction in sorted(fractions):
    scores = client_scores(by_seeds, fraction)
    everyone = [set(found.index) for found in scores.values()]
    common = sorted(set.intersection(*everyone))
    num_left_out = max(num_left_out, len(set().union(*everyone)) - len(common))
    if common:
      scores = {seeds: found.loc[common] for seeds, found in scores.items()}
      for measure in ('loss', 'accuracy'):
        pooled[fraction, measure] = _crossed(scores, f'{measure}_after')
      key = fraction, 'bits_per_byte'
      if bits := mean_over_seeds(
        {seeds: e.scores.get(key) for seeds, e in by_seeds.items()}
      ):
        pooled[key] = bits
      means = (sum(scores.values()) / len(scores)).assign(fraction=fraction)
      clients.append(means.reset_index())
  barrier = {
    name: mean_over_seeds({s: e.barrier.get(name) for s, e in by_seeds.items()})
    for name in first.barrier
  }
  return dataclasses.replace(
    first,
    scores=pooled,
    clients=pd.concat(clients) if clients else first.clients[:0],
    barrier={name: mean for name, mean in barrier.items() if mean},
    # Other seeds have other cohorts: there is no client to take a mean of.
    barrier_clients=first.barrier_clients[:0],
    affinities=_mean_affinities([e.affinities for e in evaluations]),
    num_non_finite_rows=sum(e.num_non_finite_rows for e in evaluations),
    has_barrier=any(e.has_barrier for e in evaluations),
    effective_clients=mean_over_seeds(
      {seeds: e.effective_clients for seeds, e in by_seeds.items()}
    ),
    hurt={
      fraction: _mean([e.hurt[fraction] for e in evaluations])
      for fraction in sorted(
        set.intersection(*(set(e.hurt) for e in evaluations))
      )
    },
    unknown_tokens=_mean([e.unknown_tokens for e in evaluations]),
    num_seeds=len(evaluations),
    num_left_out_clients=num_left_out,
  )


def _mean_affinities(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
  """Returns the mean of each pair of clients over the seeds that have it."""
  keys = [name for name in found[0] if name != 'affinity']
  return pd.concat(found).groupby(keys, as_index=False)['affinity'].mean()


def _crossed(scores: Scores, name: str) -> Interval | None:
  """Returns the mean over seeds and clients; equal clients in all."""
  nothing = {seeds: 0.0 * found for seeds, found in scores.items()}
  # What is left of a difference from 0 is the value itself.
  summary = paired_difference(scores, nothing, name)
  if summary['mean'] is None:
    return None
  return Interval(
    *(summary[end] for end in ('mean', 'ci_low', 'ci_high')),
    tuple((s, sum(c[name].tolist()) / len(c)) for s, c in scores.items()),
  )
