"""Scores of the arms of a report: one long table, and samples of it.

`Scores.rows` has a row per run, evaluation, client and fraction. A `Sample` is
the part of an arm that is averaged: one evaluation key, round and fraction,
repeated over seeds.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tff_fedfish import files
from tff_fedfish.data.client_ids import client_id_to_cell
from tff_fedfish.evaluation.statistics import share_hurt
from tff_fedfish.printing import count
from tff_fedfish.reporting import arms as arms_module
from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.estimates import MEASURES, Estimate, estimate
from tff_fedfish.reporting.runs import (
  HELD_OUT,
  NamedEvaluation,
  Run,
  Seeds,
  Subject,
  shared_seeds,
)

SCORES = ('loss_before', 'accuracy_before', 'loss_after', 'accuracy_after')
"""Scores of a client; 'before' is before personalization."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sample:
  """Clients of an arm at one round and fraction, scored alike in its seeds."""

  arm: Arm
  subject: Subject
  round_num: int
  """Round of the checkpoints; the latest where each seed's best is another."""
  fraction: float
  key: keys.Key
  """`keys.evaluation_key`: samples of equal key may be compared."""
  evaluations: Mapping[Seeds, NamedEvaluation]
  """Seeds -> the evaluation."""
  by_seed: Mapping[Seeds, pd.DataFrame]
  """Seeds -> `SCORES` by client, also those that are not finite. Runs that
  repeat the noise only are one seed, with the mean of their scores."""

  @property
  def rank(self) -> tuple:
    """Order among samples of one arm, subject and fraction; highest counts.

    More seeds, a later round, that of the earliest seed where each one's best
    is another; more clients, more rows, no choice of the round, the newest.
    """
    first = next(iter(self.by_seed.values()))
    return (
      len(self.by_seed),
      self.rounds[0],
      len(first),
      int(first['num_evaluation_sequences'].sum()),
      self.num_trials == 1,
      max(e.written for e in self.evaluations.values()),
      *sorted(e.name for e in self.evaluations.values()),
    )

  @property
  def rounds(self) -> list[int]:
    """The rounds, ascending: one, or those that are each seed's best."""
    return sorted({e.round_num for e in self.evaluations.values()})

  def in_rounds(self, name: str) -> float | None:
    """Returns the mean over seeds of a metric in the rounds of the scores."""
    return arms_module.mean(
      [
        run.in_round(name, self.evaluations[run.seeds].round_num)
        for run in self.arm.runs
        if run.seeds in self.evaluations
      ]
    )

  @property
  def num_trials(self) -> int:
    """Rounds that its checkpoint was chosen from."""
    return max(e.num_trials for e in self.evaluations.values())

  @property
  def is_chosen_on_scored(self) -> bool:
    """Whether its checkpoint was chosen on the clients that were scored."""
    return any(e.is_chosen_on_scored for e in self.evaluations.values())

  @functools.cached_property
  def clients(self) -> list[bytes]:
    """The clients that every seed scored, sorted."""
    return sorted(
      set.intersection(*(set(t.index) for t in self.by_seed.values()))
    )

  @functools.cached_property
  def finite_clients(self) -> list[bytes]:
    """The clients with a finite loss in every seed, sorted."""
    finite = (
      set(table.index[np.isfinite(table['loss_after'])])
      for table in self.by_seed.values()
    )
    return sorted(set.intersection(*finite))

  @property
  def problem(self) -> str:
    """'3 of 8 clients finite' or '2 of 5 seeds diverged'; '' if neither."""
    if diverged := len(self.arm.diverged_seeds):
      return f'{diverged} of {count(self.arm.num_seeds, "seed")} diverged'
    if len(self.finite_clients) < len(self.clients):
      clients = count(len(self.clients), 'client')
      everywhere = ' in every seed' * (len(self.by_seed) > 1)
      return f'{len(self.finite_clients)} of {clients} finite{everywhere}'
    return ''

  def values(self, column: str) -> dict[Seeds, dict[bytes, float]]:
    """Returns a column of `SCORES` by seed, of the clients that are finite."""
    index = pd.Index(self.finite_clients, dtype=object)
    return {s: t[column].loc[index].to_dict() for s, t in self.by_seed.items()}

  @functools.cached_property
  def estimates(self) -> dict[str, Estimate | None]:
    """The mean 'loss' and 'accuracy' of the finite clients.

    A checkpoint that was chosen on these clients has no interval.
    """
    found = {m: estimate(self.values(f'{m}_after')) for m in MEASURES}
    if self.is_chosen_on_scored:
      found = {m: e and e.without_interval() for m, e in found.items()}
    return found

  @functools.cached_property
  def losses(self) -> pd.Series:
    """Means over seeds of the finite clients' losses."""
    return pd.Series(self.mean_by_client('loss_after'), dtype=float)

  def mean_by_client(self, column: str) -> list[float]:
    """Returns the means over seeds of the finite clients."""
    table = pd.DataFrame(self.values(column))
    return table.mean(axis='columns').astype(float).tolist()

  @property
  def bits_per_byte(self) -> float | None:
    """Bits per byte of all scored text together; None with images."""
    bits = []
    for evaluation in self.evaluations.values():
      table = evaluation.scores_at(self.fraction)
      num_bytes = evaluation.summary.num_scored_bytes
      nats = (table['loss_after'] * table['num_evaluation_tokens']).sum()
      bits.append(num_bytes and nats / math.log(2) / num_bytes)
    return None if self.problem else arms_module.mean(bits)

  @property
  def hurt(self) -> float | None:
    """Share of the clients whose loss personalization raised, over seeds.

    A loss that is not finite afterwards counts as raised. None at fraction 0.
    """
    shares = map(share_hurt, self.by_seed.values())
    shares = [share for share in shares if share is not None]
    return arms_module.mean(shares) if self.fraction else None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Scores:
  """Runs, their arms, and all samples that were scored."""

  runs: Sequence[Run]
  arms: Sequence[Arm]
  """The runs, repetitions together."""
  samples: Sequence[Sample]

  @functools.cached_property
  def rows(self) -> pd.DataFrame:
    """The long table of all evaluations.

    Columns are run, arm, subject, evaluation, round and those of
    per_client.csv.
    """
    return _long_table(self.arms)

  @functools.cached_property
  def shown(self) -> list[Sample]:
    """The sample that counts for each arm, subject and fraction, in order."""
    by_place = keys.grouped(
      self.samples, lambda s: (s.arm, s.subject, s.fraction)
    )
    return [max(group, key=lambda s: s.rank) for group in by_place.values()]

  def shown_of(self, subject: Subject) -> list[Sample]:
    """Returns the shown samples of a subject."""
    return [s for s in self.shown if s.subject == subject]

  def clients_csv(self) -> str:
    """Returns the rows of the shown samples as CSV, in full precision."""
    shown = {
      (run.label, s.evaluations[run.seeds].name, s.fraction)
      for s in self.shown
      for run in s.arm.runs
      if run.seeds in s.evaluations
    }
    place = self.rows[['run', 'evaluation', 'fraction']]
    is_shown = [p in shown for p in place.itertuples(index=False, name=None)]
    rows = self.rows[is_shown]
    rows = rows.assign(client_id=rows['client_id'].map(client_id_to_cell))
    rows = rows.astype(object).where(rows.notna(), None)
    return files.csv_file(rows.columns, rows.itertuples(index=False))


def read_scores(runs: Sequence[Run], *, averages_seeds: bool = True) -> Scores:
  """Returns the scores of the runs of a report.

  Args:
    runs: The runs.
    averages_seeds: Whether runs that differ in seeds only are one arm.
  """
  arms = [Arm(run.label, (run,)) for run in runs]
  if averages_seeds:
    arms = arms_module.find_arms(runs)
  samples = [sample for arm in arms for sample in _samples(arm)]
  return Scores(runs=runs, arms=arms, samples=samples)


def _long_table(arms: Sequence[Arm]) -> pd.DataFrame:
  tables = [
    evaluation.clients.assign(
      run=run.label,
      arm=arm.label,
      subject=str(run.subject_of(evaluation) or evaluation.summary.kind),
      evaluation=evaluation.name,
      round=evaluation.round_num,
    )
    for arm in arms
    for run in arm.runs
    for evaluation in run.evaluations
  ]
  first = ['run', 'arm', 'subject', 'evaluation', 'round']
  if not tables:
    return pd.DataFrame(columns=[*first, 'client_id', 'fraction'])
  rows = pd.concat(tables, ignore_index=True)
  return rows[[*first, *(c for c in rows.columns if c not in first)]]


def _samples(arm: Arm) -> list[Sample]:
  """Returns the samples of an arm; of equal ones of a seed the newest."""
  groups: dict[Any, dict[Seeds, NamedEvaluation]] = {}
  for run in arm.runs:
    for evaluation in sorted(
      run.evaluations, key=lambda e: (e.written, e.name)
    ):
      subject = run.subject_of(evaluation)
      for fraction in evaluation.fractions if subject else ():
        key = keys.evaluation_key(run, evaluation, fraction)
        # Each seed has a best round of its own.
        is_best = evaluation.num_trials > 1
        round_num = None if is_best else evaluation.round_num
        place = subject, round_num, fraction, key
        groups.setdefault(place, {})[run.seeds] = evaluation
  return [
    Sample(
      arm=arm,
      subject=subject,
      round_num=max(e.round_num for e in evaluations.values()),
      fraction=fraction,
      key=key,
      evaluations=evaluations,
      by_seed=_by_seed(evaluations, fraction),
    )
    for (subject, _, fraction, key), evaluations in sorted(
      groups.items(),
      key=lambda item: (item[0][0] != HELD_OUT, item[0][0], item[0][2]),
    )
  ]


def _by_seed(
  evaluations: Mapping[Seeds, NamedEvaluation], fraction: float
) -> dict[Seeds, pd.DataFrame]:
  """Returns the scores by seed; see `Sample.by_seed`."""
  grouped = keys.grouped(
    evaluations.items(), lambda item: shared_seeds(item[0])
  )
  found = {}
  for seeds, several in grouped.items():
    tables = [evaluation.scores_at(fraction) for _, evaluation in several]
    found[seeds] = tables[0]
    if len(tables) > 1:
      sums = {c: sum(table[c] for table in tables) for c in SCORES}
      means = pd.DataFrame(sums) / len(tables)
      found[seeds] = means.join(tables[0].drop(columns=list(SCORES)))
  return found
