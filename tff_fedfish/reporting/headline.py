"""The report's first sentence: how methods compare at equal settings."""

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from tff_fedfish.reporting import match
from tff_fedfish.reporting.comparisons import shown_interval, verdict
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.runs import HELD_OUT, OWN_TEST, Run, subjects
from tff_fedfish.reporting.words import listed, shown, words_of

_SAMPLED = 'the held-out clients sampled during training'
_MAX_CLAUSES = 4
_MAX_SETTINGS = 4


def headline(runs: Sequence[Run], comparisons: pd.DataFrame) -> str:
  """Returns one sentence on how methods compare, or on the only run's scores.

  No difference between runs is called significant.

  Args:
    runs: The pooled runs.
    comparisons: Lines of `compare_methods` of the same runs.
  """
  unit = f'nats per {words_of(runs).unit}'
  if len(runs) == 1:
    return _scores_of_one(runs[0], unit)
  clauses, compared = _comparisons(runs, comparisons, unit)
  if not clauses:
    clauses, compared = _sampled_comparisons(runs, unit)
  if not clauses:
    if not any(run.evaluations or run.last('held_out/loss') for run in runs):
      return f'{len(runs)} runs without a held-out score so far.'
    return (
      f'None of {len(runs)} runs is compared: no two differ in the method only '
      'and were evaluated alike.'
    )
  left_out = _left_out(runs, compared)
  comma = ',' * clauses[0].startswith('of ')
  return f'At equal settings{comma} {"; ".join([*clauses, *left_out])}.'


def _comparisons(
  runs: Sequence[Run], comparisons: pd.DataFrame, unit: str
) -> tuple[list[str], list[Run]]:
  """Returns clauses on the first clients and fraction, and the runs in them."""
  lines = comparisons[comparisons['measure'] == 'loss']
  for subject, fraction in itertools.product(
    subjects(runs), sorted(set(lines['fraction']))
  ):
    is_own = (lines['subject'] == str(subject)) & (
      lines['fraction'] == fraction
    )
    if is_own.any():
      where = str(subject)
      if fraction:
        where += f' after personalization on {100 * fraction:g} %'
      rows = list(lines[is_own].itertuples())
      return (
        _clauses(rows, unit, where),
        _compared_runs(runs, subject, fraction),
      )
  return [], []


def _clauses(rows: Sequence[Any], unit: str, where: str) -> list[str]:
  """Returns a clause for each comparison; of many, how they ended."""
  if len(rows) > _MAX_CLAUSES:
    counts = collections.Counter(map(verdict, rows))
    words = [
      f'{count} are undecided'
      if name == 'undecided'
      else f'{name.removesuffix(" lower")} is lower in {count}'
      for name, count in counts.most_common()
    ]
    return [f'of {len(rows)} comparisons on {where}: {listed(words)}']
  clauses = []
  for row in rows:
    if verdict(row) == 'undecided':
      clause = (
        f'{row.method} minus {row.baseline} is undecided, '
        f'{shown(row.mean, 3, 1, "+")} ({shown_interval(row, "%+.3f", 1)})'
      )
    else:
      names, sign = (row.method, row.baseline), -1
      if row.mean > 0:
        names, sign = (row.baseline, row.method), 1
      low, high = sorted((sign * row.ci_low, sign * row.ci_high))
      clause = (
        f'{names[0]} is lower than {names[1]} by {sign * row.mean:.3f} '
        f'({low:.3f} to {high:.3f})'
      )
    clause += f' {unit} on {where}' * (not clauses)
    if row.setting and len(rows) > 1:
      clause += f' with {row.setting}'
    clauses.append(clause)
  return clauses


def _compared_runs(runs, subject, fraction) -> list[Run]:
  """Returns the pooled runs that are compared with another one."""
  found = []
  for run, other in itertools.combinations(runs, 2):
    if match.setting_of(run) == match.setting_of(other) and any(
      match.paired_evaluations(
        *(one.repetitions or (one,) for one in (run, other)), subject, fraction
      )
    ):
      found += [run, other]
  return found


def _sampled_comparisons(runs, unit) -> tuple[list[str], list[Run]]:
  """Returns the same by the last scores of metrics.csv, without intervals."""
  clauses, compared = [], []
  scored = [run for run in runs if run.last('held_out/loss') is not None]
  groups = match.grouped(
    scored,
    lambda r: (
      match.setting_of(r),
      match.sample_of(r),
      r.last_round,
      tuple(sorted(one.seeds for one in r.repetitions or (r,))),
    ),
  )
  groups = {key: runs for key, runs in groups.items() if len(runs) > 1}
  labels = match.labels([dict(setting) for setting, *_ in groups])
  for label, members in zip(labels, groups.values(), strict=True):
    members.sort(key=lambda run: not run.is_baseline)
    for other in members[1:]:
      pair = sorted(
        (members[0], other), key=lambda run: run.last('held_out/loss')
      )
      losses = [run.last('held_out/loss') for run in pair]
      names = [run.label for run in pair]
      clause = f'{names[0]} is lower than {names[1]} by '
      clause += f'{losses[1] - losses[0]:.3f} {unit}'
      if f'{losses[0]:.3f}' == f'{losses[1]:.3f}':
        clause = f'{listed(names)} have equal losses'
      clause += f' on {_SAMPLED}' * (not clauses)
      clauses.append(f'{clause} with {label}' if label else clause)
      compared += pair
  if len(clauses) > _MAX_CLAUSES:
    clauses = [f'{len(compared)} runs are scored on {_SAMPLED} only']
  return clauses, compared


def _left_out(runs: Sequence[Run], compared: Sequence[Run]) -> Iterator[str]:
  """Yields in what the runs that are not compared differ from the others."""
  rest = [r for r in runs if not any(r is other for other in compared)]
  if len(rest) > _MAX_CLAUSES:
    yield f'{len(rest)} further runs differ from these and are not compared'
    return
  for run in rest:
    name = run.label if run.repetitions else f'run `{run.name}`'
    differing = min(
      (_differing(run, other) for other in compared), key=len, default=[]
    )
    if len(differing) > _MAX_SETTINGS:
      num_more = len(differing) - _MAX_SETTINGS + 1
      differing = [*differing[: _MAX_SETTINGS - 1], f'{num_more} more settings']
    if differing:
      yield f'{name} differs in {listed(differing)} and is not compared'
    else:
      yield f'{name} was not evaluated alike and is not compared'


def _differing(run: Run, other: Run) -> list[str]:
  """Returns names of what two runs differ in, but for the method's own."""
  keys = [match.setting_of(r) + match.optimizers_of(r) for r in (run, other)]
  names = match.differing([match.setting_of(r) for r in (run, other)])
  if not names:
    return []
  return [match.label_of(name) for name in match.differing(keys)]


def _scores_of_one(run: Run, unit: str) -> str:
  """Returns the mean losses of the only run."""
  places = []
  for subject in subjects([run]):
    if not (evaluation := run.evaluation(subject)):
      continue
    fractions = evaluation.fractions
    own = f' of {evaluation.corpus}' if subject == HELD_OUT else ''
    # The smallest and, on held-out clients, also the largest.
    last = fractions[-1:] if subject == HELD_OUT else []
    for fraction in dict.fromkeys(fractions[:1] + last):
      if loss := evaluation.scores.get((fraction, 'loss')):
        words = 'without personalization'
        if fraction != 0.0:
          words = f'after personalization on {100 * fraction:g} % of their data'
        where = f'on {subject}{own}'
        # Models are not fine-tuned on rows of the client's own.
        where = where if subject == OWN_TEST else f'{where} {words}'
        places.append(f'{where} ({_with_interval(run, loss)})')
        # The corpus is named once.
        own = ''
  if not places and (last_loss := run.last('held_out/loss')) is not None:
    loss = Interval(last_loss)
    places.append(f'on {_SAMPLED} ({_with_interval(run, loss)})')
  if not places:
    return '1 run without a held-out score so far.'
  who = f'{run.label}, over {run.num_seeds} seeds,' * bool(run.repetitions)
  return f'Mean loss ({unit}) of {who or run.label} {listed(places)}.'


def _with_interval(run, loss):
  words = f'{loss.mean:.3f}'
  if ends := loss.shown_ends('{:.3f}'.format):
    words += f', 95 % interval {ends}'
  if 0 < len(loss.seed_means) < run.num_seeds:
    words += f'; {len(loss.seed_means)} of {run.num_seeds} seeds'
  return words
