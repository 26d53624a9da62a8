"""Tables of the page and of the console."""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tff_fedfish.reporting import keys
from tff_fedfish.reporting.arms import Arm
from tff_fedfish.reporting.findings import Findings
from tff_fedfish.reporting.runs import OWN_TEST, Run, Subject
from tff_fedfish.reporting.scores import read_scores
from tff_fedfish.reporting.summary import (
  DOWNLINK,
  Column,
  Value,
  find_columns,
)
from tff_fedfish.reporting.words import (
  PLACES,
  Words,
  interval_words,
  shown,
  words_of,
)

UPLINK = 'communication/uplink_units'
_KINDS = {
  'held_out': 'Held-out',
  'own_test': 'Own test rows',
  'transfer': 'Transfer',
}


class Cell(NamedTuple):
  """One cell of a table."""

  text: str
  interval: str = ''


ABSENT = Cell('–')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """One table of the page."""

  name: str
  """A name for links, such as 'scores_1'."""
  title: str
  subject: str = ''
  """Clients that were compared; '' of other tables."""
  headings: Sequence[str]
  """One per column; the first column names the rows."""
  rows: Sequence[Sequence[Cell]]


def score_tables(findings: Findings) -> dict[Subject, Table]:
  """Returns loss, accuracy and clients hurt of each arm, by subject."""
  by_subject = keys.grouped(findings.columns, lambda column: column.subject)
  by_subject.pop(None, None)
  tables = {}
  for number, (subject, own) in enumerate(by_subject.items(), start=1):
    # Of the clients hurt, only those by the most personalization.
    hurt = [column for column in own if column.measure == 'hurt'][-1:]
    own = [c for c in own if c.measure in ('loss', 'accuracy')] + hurt
    title = f'Scores on {subject}'
    tables[subject] = _table(f'scores_{number}', title, findings, own)
  return tables


def cost_table(findings: Findings) -> Table:
  """Returns the barrier, traffic, time and memory of each arm."""
  own = [column for column in findings.columns if column.key in _COSTS]
  if any(column.key == 'barrier/loss' for column in own):
    return _table('barrier', 'Client-Server Barrier and cost', findings, own)
  return _table('cost', 'Cost', findings, own)


def training_table(findings: Findings) -> Table:
  """Returns the last values of metrics.csv, and what single methods report."""
  names = [column.key for column in findings.columns]
  own = findings.columns[names.index('round') :] if 'round' in names else []
  return _table('training', 'Last values in metrics.csv', findings, own)


def main_table(
  runs: Sequence[Run],
  *,
  measures: Collection[str] = ('loss', 'accuracy', 'barrier', 'cost'),
) -> tuple[list[str], list[list[str]]]:
  """Returns the scores and costs of runs as text, for a console.

  Args:
    runs: The runs, in the order of the rows.
    measures: What to keep. Without 'accuracy' the table fits a narrower
      terminal.

  Returns:
    Headings, which may hold line breaks, and a row per run. A value that a run
    does not have is '–'.
  """
  scores, words = read_scores(runs, averages_seeds=False), words_of(runs)
  kinds = {
    'barrier/loss': 'barrier',
    UPLINK: 'cost',
    'seconds_per_round': 'cost',
  }
  columns = [
    column
    for column in find_columns(scores)
    if kinds.get(column.key, column.subject and column.measure) in measures
  ]
  texts = [
    [cell.text for cell in _cells(column, scores.arms)] for column in columns
  ]
  rows = list(map(list, zip([run.label for run in runs], *texts, strict=True)))
  headings = [_console_heading(column, columns, words) for column in columns]
  return ['Run', *headings], rows


def _table(
  name: str, title: str, findings: Findings, columns: Sequence[Column]
) -> Table:
  """Returns a row per arm."""
  words = words_of(findings.runs)
  cells = [_cells(column, findings.arms) for column in columns]
  return Table(
    name=name,
    title=title,
    headings=['Run', *(_heading(column, words) for column in columns)],
    rows=[
      [Cell(arm.label), *row]
      for arm, *row in zip(findings.arms, *cells, strict=True)
    ],
  )


def _heading(column: Column, words: Words) -> str:
  if not column.subject:
    name = words.metrics.get(column.key, column.key)
    return _COSTS.get(column.key, (name,))[0]
  name = 'Hurt' if column.measure == 'hurt' else words.label(column.measure)
  # Models that are not fine-tuned have no share.
  if column.subject == OWN_TEST:
    return name
  return f'{name}, {100 * column.fraction:g} %'


def _console_heading(
  column: Column, columns: Sequence[Column], words: Words
) -> str:
  name, _, share = _heading(column, words).partition(', ')
  name = name.removeprefix('Token ').split(' (')[0]
  if not column.subject:
    return name.replace('Barrier', 'Barrier\nloss')
  kind, corpus = column.subject
  same = {c.subject for c in columns if c.subject and c.subject.kind == kind}
  parts = [_KINDS[kind], corpus if len(same) > 1 else '', name, share]
  return '\n'.join(filter(None, parts))


def _cells(column: Column, arms: Sequence[Arm]) -> list[Cell]:
  """Returns a cell per arm."""
  kind = column.measure.rpartition('/')[2]
  show = _SHOW.get(column.measure) or _SHOW.get(kind, number_text)
  return [_cell(column, column.values.get(arm.label), show) for arm in arms]


def _cell(
  column: Column, value: Value | None, show: Callable[[float], str]
) -> Cell:
  if value is None:
    return ABSENT
  if value.problem:
    return Cell(value.problem)
  ends = ''
  if value.estimate:
    measure = 'accuracy' if column.measure == 'accuracy' else 'loss'
    ends = interval_words(value.estimate, measure)
  return Cell(show(value.mean), ends)


def number_text(value: float) -> str:
  """Returns a number in five digits, or with commas."""
  text = f'{value:,.0f}' if abs(value) >= 10_000 else f'{value:.5g}'
  return text.replace('-', '−')


def _seconds(value: float) -> str:
  places = 1
  if 0.001 <= value < 10:
    places = max(0, 1 - math.floor(math.log10(value)))
  return f'{value:.{places}f}'


_COSTS = {
  'barrier/loss': ('Barrier (nats)', lambda value: shown(value, 3, 1, '+')),
  UPLINK: ('Uplink (models)', number_text),
  DOWNLINK: ('Downlink (models)', number_text),
  'seconds_per_round': ('Seconds per round', _seconds),
  'peak_memory_bytes': (
    'Peak memory (GiB)',
    lambda value: shown(value, 2, 2**-30),
  ),
}
_SHOW = {
  'loss': lambda value: shown(value, PLACES['loss']),
  'accuracy': lambda value: shown(value, PLACES['accuracy'], 100),
  'hurt': lambda value: f'{100 * value:.0f} %',
  **{key: show for key, (_, show) in _COSTS.items()},
}
