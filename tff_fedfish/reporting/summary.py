"""summary.csv: everything that can be said of a run in numbers.

Tables of the page and of the console choose from the same columns.
"""

import dataclasses
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from tff_fedfish import files
from tff_fedfish.reporting import match
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.means import means_of
from tff_fedfish.reporting.runs import Run, Subject

_BARRIERS = tuple(
  f'barrier/{name}' for name in ('loss', 'global_loss', 'local_loss', 'error')
)
_TRAFFIC = ('communication/uplink_units', 'communication/total_units')
DOWNLINK = 'communication/downlink_units'
_TIMINGS = {
  'seconds_per_round': 'seconds',
  'tokens_per_second': 'tokens_per_second',
  'peak_memory_bytes': 'peak_memory_bytes',
}
_LAST = (
  *('train/loss', 'held_out/loss', 'held_out/accuracy'),
  *('personal/loss', 'personal/accuracy'),
  *('privacy/epsilon_mean', 'privacy/epsilon_max'),
)


class Value(NamedTuple):
  """A number with its 95 % interval, where one was computed."""

  mean: float
  low: float | None = None
  high: float | None = None
  scale: Hashable = None
  """`Mean.scale`: values of equal scales may be ranked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
  """One number of each arm that has it."""

  key: str
  """Name in summary.csv, such as 'held_out/loss/0.25'."""
  measure: str
  """`Mean.measure`; of what is not of an evaluation, the key."""
  values: dict[str, Value]
  """Values by the arm's label; not empty."""
  subject: Subject | None = None
  """Clients that were scored; None: it is not of an evaluation."""
  fraction: float | None = None
  """Fraction of the client's data that was personalized on."""


def find_columns(arms: Sequence[Arm], means: pd.DataFrame) -> list[Column]:
  """Returns the columns in which any arm has a value.

  Args:
    arms: The rows.
    means: `Scores.means` of them.
  """

  def last(key):
    return {arm.label: arm.last(key) for arm in arms}

  shown = means[means['is_shown']]
  columns = list(_scores(arms, shown))
  for key in _BARRIERS:
    # Where no round was replayed, as measured while training.
    trained = last(key)
    replayed = _values(shown[shown['measure'] == key])
    columns.append(_column(key, trained | replayed))
  columns += [_column(key, last(key)) for key in _TRAFFIC]
  uplinks, totals = map(last, _TRAFFIC)
  downlinks = {
    label: None if total is None else total - uplinks[label]
    for label, total in totals.items()
  }
  columns.append(_column(DOWNLINK, downlinks))
  for key, timing in _TIMINGS.items():
    values = {arm.label: arm.typical(timing) for arm in arms}
    columns.append(_column(key, values))
  columns.append(_column('round', {arm.label: arm.last_round for arm in arms}))
  columns.append(_column('tokens_seen', dict(map(_tokens_seen, arms))))
  of_methods = _columns_of_methods(arms)
  columns += [_column(key, last(key)) for key in (*_LAST, *of_methods)]
  return [column for column in columns if column.values]


def summary_csv(runs: Sequence[Run]) -> str:
  """Returns all columns as CSV, a row per run, with the ends of intervals."""
  arms = [Arm(run.label, (run,)) for run in runs]
  header = ['run', 'directory', 'method', 'num_local_epochs', 'round']
  lines = [
    [run.label, run.name, run.algorithm, run.num_local_epochs, run.last_round]
    for run in runs
  ]
  for column in find_columns(arms, means_of(arms)):
    if column.key == 'round':
      continue
    ends = {'': 'mean'}
    if any(value.low is not None for value in column.values.values()):
      ends |= {'/ci_low': 'low', '/ci_high': 'high'}
    header += [column.key + end for end in ends]
    for run, line in zip(runs, lines, strict=True):
      value = column.values.get(run.label)
      line += [value and getattr(value, name) for name in ends.values()]
  return files.csv_file(header, lines)


def _scores(arms: Sequence[Arm], shown: pd.DataFrame) -> Iterator[Column]:
  """Yields the scores on each subject, then how they spread over clients."""
  subjects = match.subjects(run for arm in arms for run in arm.runs)
  tables = {s: shown[shown['subject'] == str(s)] for s in subjects}
  for subject, rows in tables.items():
    fractions = sorted(rows['fraction'].dropna().unique())
    for measure in ('loss', 'accuracy', 'bits_per_byte'):
      for fraction in fractions:
        key = f'{measure}/{fraction:g}'
        yield _score(subject, rows, key, measure, fraction)
    yield _score(subject, rows, 'unknown_tokens', 'unknown_tokens')
  for subject, rows in tables.items():
    for fraction in sorted(rows['fraction'].dropna().unique()):
      for measure in ('p10', 'p50', 'p90', 'worst', 'hurt'):
        key = f'spread/{fraction:g}/{measure}'
        yield _score(subject, rows, key, measure, fraction)


def _score(
  subject: Subject,
  rows: pd.DataFrame,
  key: str,
  measure: str,
  fraction: float | None = None,
) -> Column:
  rows = rows[rows['measure'] == measure]
  if fraction is not None:
    rows = rows[rows['fraction'] == fraction]
  return Column(
    key=f'{subject.key}/{key}',
    measure=measure,
    values=_values(rows),
    subject=subject,
    fraction=fraction,
  )


def _values(rows: pd.DataFrame) -> dict[str, Value]:
  values = {}
  for row in rows.itertuples():
    ends = (None, None) if math.isnan(row.low) else (row.low, row.high)
    values[row.arm] = Value(row.mean, *ends, row.scale)
  return values


def _column(key: str, values: dict[str, Value | float | None]) -> Column:
  typed = {
    label: value if isinstance(value, Value) else Value(value)
    for label, value in values.items()
    if value is not None
  }
  return Column(key=key, measure=key, values=typed)


def _tokens_seen(arm: Arm) -> tuple[str, float | None]:
  total = sum(row.get('train/num_tokens') or 0 for row in arm.metrics)
  return arm.label, total or None


def _columns_of_methods(arms: Sequence[Arm]) -> Iterable[str]:
  """Returns columns that methods add; not those that end at 0 in all arms."""
  return dict.fromkeys(
    column.name
    for arm in arms
    for column in arm.train_config.method.columns(arm.train_config)
    if arm.last(column.name)
  )
