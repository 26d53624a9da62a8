"""Tables of the page and of the console."""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from tff_fedfish.reporting import comparisons, keys
from tff_fedfish.reporting.comparisons import shown_interval
from tff_fedfish.reporting.match import Arm
from tff_fedfish.reporting.means import means_of
from tff_fedfish.reporting.runs import OWN_TEST, Run, Subject
from tff_fedfish.reporting.scores import Scores
from tff_fedfish.reporting.summary import DOWNLINK, Column, find_columns
from tff_fedfish.reporting.words import Words, shown, words_of

_UPLINK = 'communication/uplink_units'
_KINDS = {
  'held_out': 'Held-out',
  'own_test': 'Own test rows',
  'transfer': 'Transfer',
}


class Cell(NamedTuple):
  """One cell of a table."""

  text: str
  interval: str = ''
  is_best: bool = False
  """Whether it is the best of its column."""


_ABSENT = Cell('–')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """One table of the page."""

  name: str
  """A name for links, such as 'scores_1'."""
  title: str
  headings: Sequence[str]
  """One per column; the first column names the rows."""
  rows: Sequence[Sequence[Cell]]


def comparison_tables(scores: Scores) -> list[Table]:
  """Returns method against method: the difference, how sure, at what cost.

  There is a table per subject, held-out clients first. Two values in one cell
  are of the method and of what it is compared with.
  """
  lines = scores.comparisons[scores.comparisons['measure'] == 'loss']
  tables = []
  for subject, rows in lines.groupby('subject', sort=False):
    first = rows[rows['fraction'] == rows['fraction'].min()]
    first = first.sort_values(
      'is_against_baseline', ascending=False, kind='stable'
    )
    largest = rows['fraction'].max()
    headings = [
      'Comparison',
      f'Difference in loss (nats per {words_of(scores.runs).unit})',
      '95 % interval',
      'Clients × seeds',
      'Clients with lower loss',
    ]
    if largest > rows['fraction'].min():
      share = f'personalization on {100 * largest:g} %'
      headings += [f'Difference after {share}', f'Hurt by {share}']
    tables.append(
      Table(
        name=f'comparisons_{len(tables) + 1}',
        title=f'Method comparison on {subject}',
        headings=[*headings, 'Uplink (models)'],
        rows=[_comparison(scores, x, largest) for x in first.itertuples()],
      )
    )
  return tables


def score_tables(scores: Scores) -> dict[Subject, Table]:
  """Returns loss, accuracy and clients hurt of each arm, by subject."""
  by_subject = keys.grouped(scores.columns, lambda column: column.subject)
  by_subject.pop(None, None)
  tables = {}
  for number, (subject, own) in enumerate(by_subject.items(), start=1):
    # Of the clients hurt, only those by the most personalization.
    hurt = [column for column in own if column.measure == 'hurt'][-1:]
    own = [c for c in own if c.measure in ('loss', 'accuracy')] + hurt
    title = f'Scores on {subject}'
    tables[subject] = _table(f'scores_{number}', title, scores, own)
  return tables


def cost_table(scores: Scores) -> Table:
  """Returns the barrier, traffic, time and memory of each arm."""
  own = [column for column in scores.columns if column.key in _COSTS]
  if any(column.key == 'barrier/loss' for column in own):
    return _table('barrier', 'Client-Server Barrier and cost', scores, own)
  return _table('cost', 'Cost', scores, own)


def training_table(scores: Scores) -> Table:
  """Returns the last values of metrics.csv, and what single methods report."""
  names = [column.key for column in scores.columns]
  own = scores.columns[names.index('round') :] if 'round' in names else []
  return _table('training', 'Last values in metrics.csv', scores, own)


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
  arms, words = [Arm(run.label, (run,)) for run in runs], words_of(runs)
  kinds = {
    'barrier/loss': 'barrier',
    _UPLINK: 'cost',
    'seconds_per_round': 'cost',
  }
  columns = [
    column
    for column in find_columns(arms, means_of(arms))
    if kinds.get(column.key, column.subject and column.measure) in measures
  ]
  texts = [
    [cell.text + ' *' * cell.is_best for cell in _cells(column, arms)]
    for column in columns
  ]
  rows = list(map(list, zip([run.label for run in runs], *texts, strict=True)))
  headings = [_console_heading(column, columns, words) for column in columns]
  return ['Run', *headings], rows


def _comparison(scores: Scores, line: Any, largest: float) -> list[Cell]:
  """Returns a row of `comparison_tables`."""
  names = f'{line.method} − {line.baseline}'
  cells = [
    Cell(f'{names}\n{line.setting}' if line.setting else names),
    Cell(shown(line.mean, 3, 1, '+')),
    Cell(shown_interval(line, '+z.3f')),
    Cell(f'{line.num_clients} × {line.num_seeds}'),
    Cell(f'{100 * line.share_below_zero:.0f} %'),
  ]
  if largest > line.fraction:
    later = comparisons.most_personalized(scores.comparisons, line)
    if later and later.fraction == largest:
      interval = shown_interval(later, '+z.3f')
      cells += [
        Cell(shown(later.mean, 3, 1, '+'), interval),
        _both([later.hurt, later.baseline_hurt], _SHOW['hurt']),
      ]
    else:
      cells += [_ABSENT] * 2
  units = {a.label: a.in_round(_UPLINK, line.round) for a in scores.arms}
  arms = line.arm, line.baseline_arm
  return [*cells, _both([units[arm] for arm in arms], _number)]


def _both(values: Sequence[float | None], show: Callable[[float], str]) -> Cell:
  if None in values:
    return _ABSENT
  return Cell(' / '.join(map(show, values)))


def _table(
  name: str, title: str, scores: Scores, columns: Sequence[Column]
) -> Table:
  """Returns a row per arm."""
  words = words_of(scores.runs)
  cells = [_cells(column, scores.arms) for column in columns]
  return Table(
    name=name,
    title=title,
    headings=['Run', *(_heading(column, words) for column in columns)],
    rows=[
      [Cell(arm.label), *row]
      for arm, *row in zip(scores.arms, *cells, strict=True)
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
  """Returns a cell per arm; the best of each of the equal scales is marked."""
  kind = column.measure.rpartition('/')[2]
  show = _SHOW.get(column.measure) or _SHOW.get(kind, _number)
  best = {'loss': min, 'accuracy': max}.get(column.measure)
  texts = {label: show(value.mean) for label, value in column.values.items()}
  best_texts = {}
  for scale, labels in keys.grouped(
    texts, lambda label: column.values[label].scale
  ).items():
    # Equal as shown is equal: a tie in all rows tells nothing apart.
    if best and len({texts[label] for label in labels}) > 1:
      means = [column.values[label].mean for label in labels]
      best_texts[scale] = show(best(means))
  cells = []
  for arm in arms:
    value = column.values.get(arm.label)
    if value is None:
      cells.append(_ABSENT)
      continue
    text, ends = texts[arm.label], ''
    if value.low is not None:
      ends = f'{show(value.low)} to {show(value.high)}'
    cells.append(Cell(text, ends, text == best_texts.get(value.scale)))
  return cells


def _number(value: float) -> str:
  text = f'{value:,.0f}' if abs(value) >= 10_000 else f'{value:.5g}'
  return text.replace('-', '−')


def _seconds(value: float) -> str:
  places = 1
  if 0.001 <= value < 10:
    places = max(0, 1 - math.floor(math.log10(value)))
  return f'{value:.{places}f}'


_COSTS = {
  'barrier/loss': ('Barrier (nats)', lambda value: shown(value, 3, 1, '+')),
  _UPLINK: ('Uplink (models)', _number),
  DOWNLINK: ('Downlink (models)', _number),
  'seconds_per_round': ('Seconds per round', _seconds),
  'peak_memory_bytes': (
    'Peak memory (GiB)',
    lambda value: shown(value, 2, 2**-30),
  ),
}
_SHOW = {
  'loss': lambda value: shown(value, 3),
  'accuracy': lambda value: shown(value, 1, 100),
  'hurt': lambda value: f'{100 * value:.0f} %',
  **{key: show for key, (_, show) in _COSTS.items()},
}
