"""Scores of one arm: means over clients and seeds, one row each.

Seeds and clients are drawn independently of each other and crossed in the
intervals (`evaluation/intervals.py`).
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from tff_fedfish.evaluation import intervals
from tff_fedfish.reporting import keys, match
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.runs import NamedEvaluation, Subject

SCORES = ['loss_before', 'accuracy_before', 'loss_after', 'accuracy_after']
"""Scores of a client; 'before' is before personalization."""


class Mean(NamedTuple):
  """One mean over the clients, and over the seeds, of an arm."""

  arm: str
  """`Arm.label`."""
  evaluation: str
  """Name of the evaluation's directory; that of the first seed."""
  subject: str
  """Clients that were scored, such as 'held-out clients'; '' for clients or
  rows of the training, on which the barrier is measured, too."""
  round: int
  """Round of the checkpoint."""
  num_seeds: int
  is_shown: bool
  """Whether it is of the evaluation that stands for its subject: that of most
  seeds, then of the latest round, then the last by name."""
  is_final: bool
  """The same among the evaluations after the last planned round."""
  scale: tuple
  """Clients, round and fine-tuning: rows of equal scale are ranked."""
  num_clients: int
  measure: str
  """'loss' in nats, 'accuracy' in [0, 1], 'hurt' (share of the clients whose
  loss personalization raised), 'bits_per_byte', 'p10', 'p50', 'p90', 'worst';
  'unknown_tokens', 'barrier/loss' and the like without a fraction."""
  mean: float
  low: float = math.nan
  """End of the 95 % interval; NaN where there is none."""
  high: float = math.nan
  fraction: float = math.nan
  """Fraction of the client's data that was personalized on; NaN: none is
  meant."""
  num_left_out: int = 0
  """Clients without a finite score in some of the seeds; they count in none."""


@dataclasses.dataclass(frozen=True, eq=False)
class Repeated:
  """Evaluations that are alike, one for each of some seeds of an arm."""

  key: keys.Key
  """Key that they share, of `keys.evaluation_key`."""
  subject: Subject | None
  evaluations: dict[str, NamedEvaluation]
  """Evaluations by the seeds."""

  @property
  def first(self) -> NamedEvaluation:
    """Any of them, for what they have in common."""
    return next(iter(self.evaluations.values()))

  @property
  def rank(self) -> tuple:
    """Order among evaluations of a subject; the highest stands for it."""
    # A later score of one seed is no score of all of them.
    name = match.name_key(self.first.name)
    return len(self.evaluations), self.first.round_num, name

  @functools.cached_property
  def clients(self) -> dict[float, dict[str, pd.DataFrame]]:
    """Fraction that all seeds have -> seeds -> `SCORES` of common clients."""
    found = {}
    every = (set(e.fractions) for e in self.evaluations.values())
    for fraction in sorted(set.intersection(*every)):
      rows = {s: e.scores_at(fraction) for s, e in self.evaluations.items()}
      common = sorted(set.intersection(*(set(r.index) for r in rows.values())))
      # Without the dtype NumPy cuts NULs at the end of an id.
      index = pd.Index(common, dtype=object, name='client_id')
      found[fraction] = {seeds: r.loc[index] for seeds, r in rows.items()}
    return found

  def num_left_out(self, fraction: float) -> int:
    """Returns how many clients of some seeds others lack."""
    rows = [e.scores_at(fraction).index for e in self.evaluations.values()]
    return len(set().union(*rows)) - len(set.intersection(*map(set, rows)))


def repeated_evaluations(arm: Arm) -> list[Repeated]:
  """Returns the evaluations of an arm, those that are alike together.

  Some of one run may differ in their fractions or the barrier only: then the
  first, by name, of one seed belongs to the first of another.
  """
  groups: dict[Any, Repeated] = {}
  for run in arm.runs:
    seen: collections.Counter = collections.Counter()
    for evaluation in sorted(run.evaluations, key=lambda e: e.name):
      seen[key := keys.evaluation_key(run, evaluation)] += 1
      group = Repeated(key, run.subject_of(evaluation), {})
      group = groups.setdefault((key, seen[key]), group)
      group.evaluations[run.seeds] = evaluation
  return list(groups.values())


def shown(groups: Iterable[Repeated]) -> dict[Subject, Repeated]:
  """Returns the evaluations that stand for each subject."""
  by_subject = keys.grouped(groups, lambda group: group.subject)
  return {
    subject: max(found, key=lambda group: group.rank)
    for subject, found in by_subject.items()
    if subject
  }


def shown_barrier(groups: Iterable[Repeated]) -> Repeated | None:
  """Returns the evaluations whose barrier is shown, also if of some seeds."""
  measured = [
    group
    for group in groups
    if any(e.has_barrier for e in group.evaluations.values())
  ]
  return max(measured, key=lambda group: group.rank, default=None)


def means_of(arms: Iterable[Arm]) -> pd.DataFrame:
  """Returns the means of all evaluations; columns are the fields of `Mean`."""
  rows = itertools.chain(*map(_means_of, arms))
  table = pd.DataFrame(rows, columns=Mean._fields)
  # Without a row pandas knows no dtype.
  return table.astype(
    dict.fromkeys(('fraction', 'mean', 'low', 'high'), float)
    | dict.fromkeys(('is_shown', 'is_final'), bool)
  )


def _means_of(arm: Arm) -> Iterator[Mean]:
  groups = repeated_evaluations(arm)
  last = [g for g in groups if g.first.round_num == arm.num_rounds]
  of_subjects, final = shown(groups).values(), shown(last).values()
  barrier = shown_barrier(groups)
  for group in groups:
    row = functools.partial(
      Mean,
      arm=arm.label,
      evaluation=group.first.name,
      round=group.first.round_num,
      num_seeds=len(group.evaluations),
      is_final=group in final,
    )
    subject = str(group.subject or '')
    is_shown = group in of_subjects
    rows = _scores(arm, group, row, subject=subject, is_shown=is_shown)
    yield from (mean for mean in rows if mean.mean is not None)
    rows = _barrier(group, row, subject='', is_shown=group is barrier)
    yield from (mean for mean in rows if mean.mean is not None)


def clients_of(arm: Arm) -> Iterator[pd.DataFrame]:
  """Yields the means over seeds of the clients of what is shown."""
  for subject, group in shown(repeated_evaluations(arm)).items():
    for fraction, rows in group.clients.items():
      place = {
        'arm': arm.label,
        'subject': str(subject),
        'kind': subject.kind,
        'model': group.first.model,
        'round': group.first.round_num,
        'fraction': fraction,
      }
      means = sum(r[SCORES] for r in rows.values()) / len(rows)
      yield means.assign(**place).reset_index()


def _scores(
  arm: Arm, group: Repeated, row: Callable[..., Mean], **place: Any
) -> Iterator[Mean]:
  """Yields the scores at each fraction, then what has no fraction."""
  run = next(run for run in arm.runs if run.seeds in group.evaluations)
  clients_key = keys.client_key(run)
  summaries = [e.summary for e in group.evaluations.values()]
  for fraction, clients in group.clients.items():
    num_clients = len(next(iter(clients.values())))
    score = functools.partial(
      row,
      **place,
      scale=(clients_key, keys.evaluation_key(run, group.first, fraction)),
      fraction=fraction,
      num_clients=num_clients,
      num_left_out=group.num_left_out(fraction),
    )
    of_seeds = [s for summary in summaries for s in summary.fractions]
    of_seeds = [s for s in of_seeds if s.fraction == fraction]
    for measure in ('loss', 'accuracy'):
      if len(of_seeds) == 1:
        own = getattr(of_seeds[0], measure)
        numbers = own.mean, own.ci_low, own.ci_high
      else:
        numbers = _crossed(clients, f'{measure}_after')
      yield score(**_interval(*numbers), measure=measure)
    if num_clients:
      losses = sum(r['loss_after'] for r in clients.values()) / len(clients)
      for measure, quantile in (('p10', 0.1), ('p50', 0.5), ('p90', 0.9)):
        yield score(measure=measure, mean=float(losses.quantile(quantile)))
      yield score(measure='worst', mean=intervals.worst_decile(losses))
    bits = _mean_of_some([s.bits_per_byte for s in of_seeds])
    yield score(measure='bits_per_byte', mean=bits)
    hurt = match.mean([s.share_of_clients_hurt for s in of_seeds])
    yield score(measure='hurt', mean=hurt)
  unknown = match.mean([s.unknown_token_fraction for s in summaries])
  count = {'num_clients': summaries[0].num_clients, 'scale': ()}
  yield row(**place, **count, measure='unknown_tokens', mean=unknown)


def _barrier(
  group: Repeated, row: Callable[..., Mean], **place: Any
) -> Iterator[Mean]:
  summaries = [e.summary for e in group.evaluations.values()]
  barriers = [s.client_server_barrier for s in summaries]
  barriers = [barrier for barrier in barriers if barrier]
  count = {
    'num_clients': sum(b.num_clients for b in barriers),
    # Not every seed may have replayed a round.
    'num_seeds': len(barriers),
    'scale': (),
  }
  for name in ('loss', 'error', 'local_loss', 'global_loss'):
    means = [getattr(barrier, name) for barrier in barriers]
    numbers = {'mean': _mean_of_some([mean.mean for mean in means])}
    if len(means) == 1 and name in ('loss', 'error'):
      numbers = _interval(means[0].mean, means[0].ci_low, means[0].ci_high)
    yield row(**place, **count, **numbers, measure=f'barrier/{name}')


def _interval(
  mean: float | None, low: float | None, high: float | None
) -> dict[str, float | None]:
  ends = {} if low is None else {'low': low, 'high': high}
  return {'mean': mean} | ends


def _crossed(
  clients: dict[str, pd.DataFrame], score: str
) -> tuple[float | None, float | None, float | None]:
  """Returns the mean over seeds and clients with its interval."""
  values = {seeds: rows[score].to_dict() for seeds, rows in clients.items()}
  # What is left of a difference from 0 is the value itself.
  nothing = {seeds: dict.fromkeys(own, 0.0) for seeds, own in values.items()}
  summary = intervals.paired_difference(values, nothing)
  return summary['mean'], summary['ci_low'], summary['ci_high']


def _mean_of_some(values: Sequence[float | None]) -> float | None:
  """Returns the mean of the values that are there."""
  return match.mean([v for v in values if v is not None] or [None])
