"""Tables of the page and of the console."""

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from tff_fedfish.reporting import comparisons, keys
from tff_fedfish.reporting.comparisons import shown_interval, verdict
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.runs import OWN_TEST, Run
from tff_fedfish.reporting.scores import Scores, means_of
from tff_fedfish.reporting.summary import Column, find_columns
from tff_fedfish.reporting.words import Words, shown, words_of

_KINDS = {
  'held_out': 'Held-out',
  'own_test': 'Own test rows',
  'transfer': 'Transfer',
}
_COSTS = {
  'barrier/loss': ('Barrier (nats)', lambda v: shown(v, 3, 1, '+')),
  'effective_clients': ('Effective clients', lambda v: shown(v, 1)),
  'communication/uplink_units': ('Uplink (units)', '{:,.5g}'.format),
  'seconds_per_round': ('Seconds per round', lambda v: _seconds(v)),
  'peak_memory_bytes': ('Peak memory (GiB)', lambda v: shown(v, 2, 2**-30)),
}


class Cell(NamedTuple):
  """One cell of a table."""

  text: str
  interval: str = ''
  is_best: bool = False
  """Whether it is the best of its column."""


ABSENT = Cell('–')
"""No value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """One table of the page."""

  title: str
  headings: Sequence[str]
  """One per column; the first column names the rows."""
  rows: Sequence[Sequence[Cell]]
  num_narrow: int = 4
  """How many of the first columns a phone shows."""


def comparison_table(scores: Scores) -> Table | None:
  """Returns method against method: the difference, how sure, at what cost.

  It is of `comparisons.main_comparisons`; None without any. Two values in one
  cell are of the method and of what it is compared with.
  """
  lines = comparisons.main_comparisons(scores.comparisons)
  if not lines:
    return None
  later = [comparisons.most_personalized(scores.comparisons, x) for x in lines]
  largest = max((row.fraction for row in later if row), default=0.0)
  share = f'personalization on {100 * largest:g} %'
  return Table(
    title=f'Method against method on {lines[0].subject}',
    headings=[
      'Method',
      f'Difference in loss (nats per {words_of(scores.runs).unit})',
      '95 % interval',
      'Clients × seeds',
      'Lower loss for',
      *([f'Difference after {share}', f'Hurt by {share}'] if largest else []),
      'Uplink (units)',
    ],
    rows=[
      _comparison(scores, line, row, largest)
      for line, row in zip(lines, later, strict=True)
    ],
  )


def all_comparisons(scores: Scores) -> Table | None:
  """Returns all lines of comparisons.csv, loss and accuracy side by side."""
  lines = list(scores.comparisons.itertuples())
  if not lines:
    return None
  return Table(
    title='Method against method, client by client',
    headings=[
      'Difference',
      'On',
      'Personalized on',
      f'Loss (nats per {words_of(scores.runs).unit})',
      'Accuracy (points)',
      'Lower loss for',
      'Clients × seeds',
      'Loss',
    ],
    rows=[
      [
        Cell(_names(loss)),
        Cell(loss.subject),
        ABSENT if loss.kind == OWN_TEST.kind else _percent(loss.fraction),
        Cell(shown(loss.mean, 4, 1, '+'), shown_interval(loss, '+.4f')),
        Cell(
          shown(accuracy.mean, 2, 100, '+'),
          shown_interval(accuracy, '+.2f', 100),
        ),
        _percent(loss.share_below_zero),
        Cell(f'{loss.num_clients} × {loss.num_seeds}'),
        Cell(verdict(loss)),
      ]
      # Two lines of one comparison: of the loss and of the accuracy.
      for loss, accuracy in zip(lines[::2], lines[1::2], strict=True)
    ],
  )


def score_tables(scores: Scores) -> list[Table]:
  """Returns loss, accuracy and clients hurt of each arm, by subject."""
  columns = find_columns(scores.arms, scores.means)
  tables = []
  for subject, own in keys.grouped(columns, lambda c: c.subject).items():
    if subject:
      # Of the clients hurt, only those by the most personalization.
      hurt = [column for column in own if column.measure == 'hurt'][-1:]
      own = [c for c in own if c.measure in ('loss', 'accuracy')] + hurt
      tables.append(_table(f'Scores on {subject}', scores, own))
  return tables


def cost_table(scores: Scores) -> Table:
  """Returns the barrier, traffic, time and memory of each arm."""
  columns = find_columns(scores.arms, scores.means)
  own = [column for column in columns if column.key in _COSTS]
  return _table('Client-Server Barrier and cost', scores, own)


def training_table(scores: Scores) -> Table:
  """Returns the last values of metrics.csv, and what single methods report."""
  columns = find_columns(scores.arms, scores.means)
  names = [column.key for column in columns]
  own = columns[names.index('round') :] if 'round' in names else []
  return _table('Training, last values', scores, own)


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
    Headings, which may hold line breaks, and a row per run. The best value of a
    column ends with ' *'. A value that a run does not have is '–'.
  """
  arms = [Arm(run.label, (run,)) for run in runs]
  words, keys_of = (
    words_of(runs),
    {
      'barrier': ['barrier/loss'],
      'cost': ['communication/uplink_units', 'seconds_per_round'],
    },
  )
  wanted = {key for measure in measures for key in keys_of.get(measure, [])}
  columns = [
    column
    for column in find_columns(arms, means_of(arms))
    if (column.subject and column.measure in measures) or column.key in wanted
  ]
  texts = [
    [cell.text + ' *' * cell.is_best for cell in _cells(column, arms)]
    for column in columns
  ]
  rows = list(map(list, zip([run.label for run in runs], *texts, strict=True)))
  headings = [_console_heading(column, columns, words) for column in columns]
  return ['Run', *headings], rows


def _comparison(scores: Scores, line: Any, later: Any, largest: float):
  """Returns a row of `comparison_table`."""
  arms = line.arm, line.baseline_arm
  cells = [
    Cell(_names(line)),
    Cell(shown(line.mean, 4, 1, '+')),
    Cell(shown_interval(line, '+.4f')),
    Cell(f'{line.num_clients} × {line.num_seeds}'),
    _percent(line.share_below_zero),
  ]
  if largest:
    cells.append(ABSENT)
    if later:
      interval = shown_interval(later, '+.4f')
      cells[-1] = Cell(shown(later.mean, 4, 1, '+'), interval)
    hurt = scores.shown(line.subject, 'hurt', largest)
    shares = [hurt[arm].mean if arm in hurt else None for arm in arms]
    cells.append(_both(shares, '{:.0%}'))
  units = {a.label: a.last('communication/uplink_units') for a in scores.arms}
  return [*cells, _both([units[arm] for arm in arms], '{:g}')]


def _names(line: Any) -> str:
  names = f'{line.method} − {line.baseline}'
  return f'{names}, {line.setting}' if line.setting else names


def _both(values: Sequence[float | None], spec: str) -> Cell:
  if None in values:
    return ABSENT
  return Cell(' / '.join(map(spec.format, values)))


def _percent(share: float) -> Cell:
  return Cell(f'{100 * share:.3g} %')


def _table(title: str, scores: Scores, columns: Sequence[Column]) -> Table:
  """Returns a row per arm."""
  words = words_of(scores.runs)
  cells = [_cells(column, scores.arms) for column in columns]
  return Table(
    title=title,
    headings=['Run', *(_heading(column, words) for column in columns)],
    rows=[
      [Cell(arm.label), *row]
      for arm, *row in zip(scores.arms, *cells, strict=True)
    ],
  )


def _heading(column: Column, words: Words) -> str:
  if column.key in _COSTS:
    return _COSTS[column.key][0]
  if not column.subject:
    return column.key
  share = f', {100 * column.fraction:g} %'
  name = 'Hurt' if column.measure == 'hurt' else words.label(column.measure)
  return name + share * (column.subject != OWN_TEST)


def _console_heading(
  column: Column, columns: Sequence[Column], words: Words
) -> str:
  name = _heading(column, words).replace('Token ', '')
  name, _, share = name.partition(', ')
  name = name.split(' (')[0]
  if not column.subject:
    return name.replace('Barrier', 'Barrier\nloss')
  kind, corpus = column.subject
  same = {c.subject for c in columns if c.subject and c.subject.kind == kind}
  parts = [_KINDS[kind], corpus if len(same) > 1 else '', name, share]
  return '\n'.join(filter(None, parts))


def _cells(column: Column, arms: Sequence[Arm]) -> list[Cell]:
  """Returns a cell per arm; the best of each of the equal scales is marked."""
  show, best = _format(column)
  texts = {label: show(value.mean) for label, value in column.values.items()}
  best_of = {}
  for scale, labels in keys.grouped(
    column.values, lambda label: column.values[label].scale
  ).items():
    # Equal as shown is equal: a tie in all rows tells nothing apart.
    if best and len({texts[label] for label in labels}) > 1:
      best_of[scale] = show(best(column.values[x].mean for x in labels))
  cells = []
  for arm in arms:
    value = column.values.get(arm.label)
    if value is None:
      cells.append(ABSENT)
      continue
    ends = ''
    if value.low is not None:
      ends = f'{show(value.low)} to {show(value.high)}'
    text = texts[arm.label]
    cells.append(Cell(text, ends, text == best_of.get(value.scale)))
  return cells


def _format(column: Column):
  """Returns how numbers are shown, and `min` or `max` if any is the best."""
  if column.key in _COSTS:
    return _COSTS[column.key][1], None
  if not column.subject:
    return lambda value: f'{value:,.5g}'.replace('-', '−'), None
  return {
    'loss': (lambda value: shown(value, 3), min),
    'accuracy': (lambda value: shown(value, 1, 100), max),
    'hurt': (lambda value: f'{value:.0%}', None),
  }[column.measure]


def _seconds(value: float) -> str:
  places = 1
  if 0.001 <= value < 10:
    places = max(0, 1 - math.floor(math.log10(value)))
  return f'{value:.{places}f}'
