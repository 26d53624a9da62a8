"""The main table: one row per run, one column per score and cost."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tff_fedfish.reporting.csv_files import csv_file
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.runs import Run, subjects
from tff_fedfish.reporting.words import shown, words_of


@dataclasses.dataclass(frozen=True)
class Column:
  """One column of the main table.

  Attributes:
    key: Name in summary.csv, such as 'held_out/loss/0.25'.
    panel: 'held_out', 'transfer: CORPUS', 'cost', 'training' or 'method'.
    measure: 'loss', 'accuracy', 'barrier', 'cost' or 'further'.
    group: Heading shared by neighbours, with the unit.
    heading: The column's own heading; may be empty.
    lower_is_better: None where neither direction is better.
    show: Formats a value.
    values: The value of each run, None where it has none.
  """

  key: str
  panel: str
  measure: str
  group: str
  heading: str
  lower_is_better: bool | None
  show: Callable[[float], str]
  values: Sequence[Interval | None]

  @property
  def has_interval(self) -> bool:
    """Whether any value has one."""
    return any(v and v.ci_low is not None for v in self.values)


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell: text to show, its interval, and whether it is a best value."""

  value: Interval | None
  text: str
  interval_text: str
  is_best: bool


@dataclasses.dataclass(frozen=True)
class MainTable:
  """The main table; `cells[i][j]` is run i in column j."""

  runs: tuple[Run, ...]
  columns: tuple[Column, ...]
  cells: tuple[tuple[Cell, ...], ...]

  def panels(self) -> Iterator[tuple[str, 'MainTable']]:
    """Yields the name of each panel and the table with its columns only."""
    for name in dict.fromkeys(column.panel for column in self.columns):
      kept = [i for i, c in enumerate(self.columns) if c.panel == name]
      yield (
        name,
        MainTable(
          self.runs,
          tuple(self.columns[i] for i in kept),
          tuple(tuple(row[i] for i in kept) for row in self.cells),
        ),
      )


def build_main_table(runs: Sequence[Run]) -> MainTable:
  """Returns the main table; columns in which no run has a value are left out.

  Args:
    runs: The runs of the report, in the order of the rows.

  Returns:
    The table. The best values of a column are marked if at least two runs have
    one and they are not all shown alike, among the runs of each `data.corpus`.
  """
  columns = tuple(c for c in _columns(runs) if any(c.values))
  by_column = [_cells(column, runs) for column in columns]
  cells = zip(*by_column, strict=True) if columns else ((),) * len(runs)
  return MainTable(tuple(runs), columns, tuple(cells))


def main_table(
  runs: Sequence[Run],
  *,
  measures: Collection[str] = ('loss', 'accuracy', 'barrier', 'cost'),
) -> tuple[list[str], list[list[str]]]:
  """Returns the main table as text, for a console.

  Args:
    runs: The runs, in the order of the rows.
    measures: Which columns to keep: 'loss', 'accuracy', 'barrier', 'cost',
      'further'. Without 'accuracy' the table fits a narrower terminal.

  Returns:
    Headings, which may hold line breaks, and one row of equal length per run.
    The best value of a column ends with ' *'. A value that a run does not have
    is '–'.
  """
  table = build_main_table(runs)
  kept = [i for i, c in enumerate(table.columns) if c.measure in measures]
  headers = ['Run'] + [_console_heading(table, i) for i in kept]
  rows = [
    [run.label] + [row[i].text + (' *' if row[i].is_best else '') for i in kept]
    for run, row in zip(table.runs, table.cells, strict=True)
  ]
  return headers, rows


def summary_csv(table: MainTable) -> str:
  """Returns the main table as CSV, with the ends of intervals as columns."""
  header = ['run', 'directory', 'method', 'num_local_epochs', 'round']
  for column in table.columns:
    ends = ('', '/ci_low', '/ci_high') if column.has_interval else ('',)
    header += [column.key + end for end in ends]
  lines = []
  for number, run in enumerate(table.runs):
    line = [run.label, run.name, run.algorithm]
    line += [run.num_local_epochs, run.last_round]
    for column in table.columns:
      value = column.values[number]
      line.append(value and value.mean)
      if column.has_interval:
        line += [value and value.ci_low, value and value.ci_high]
    lines.append(line)
  return csv_file(header, lines)


def _columns(runs: Sequence[Run]) -> Iterator[Column]:
  """Yields all columns that the main table may have, in order."""
  words = words_of(runs)

  def column(key, group, show, lower_is_better, values, **further):
    place = {'panel': 'cost', 'measure': 'further', 'heading': ''} | further
    found = [
      v if isinstance(v, Interval | None) else Interval(v) for v in values
    ]
    return Column(
      key=key,
      group=group,
      show=show,
      lower_is_better=lower_is_better,
      values=found,
      **place,
    )

  def metric(key, group, show, lower_is_better, **further):
    values = [run.last(key) for run in runs]
    return column(key, group, show, lower_is_better, values, **further)

  def timing(key, group, show, lower_is_better, name, **further):
    values = [run.typical(name) for run in runs]
    return column(key, group, show, lower_is_better, values, **further)

  for subject in subjects(runs):
    found = [run.evaluation(subject) for run in runs]
    panel, prefix = (
      separator.join(filter(None, subject)) for separator in (': ', '/')
    )
    for measure, show in (
      ('loss', _rounded(3)),
      ('accuracy', _rounded(1, 100)),
    ):
      for fraction in sorted({f for e in found if e for f in e.fractions}):
        yield column(
          f'{prefix}/{measure}/{fraction:g}',
          words.label(measure),
          show,
          measure == 'loss',
          [e and e.score(fraction, measure) for e in found],
          panel=panel,
          measure=measure,
          heading=f'{100 * fraction:g} %',
        )
    values = [e and e.unknown_tokens for e in found]
    yield column(
      f'{prefix}/unknown_tokens',
      'Unknown tokens (%)',
      _rounded(1, 100),
      None,
      values,
      panel=panel,
    )
  replayed = [run.barrier() for run in runs]
  for measure, group, kind, show in (
    ('loss', 'Barrier, loss (nats)', 'barrier', _rounded(3, 1, '+')),
    ('error', 'Barrier, error (points)', 'further', _rounded(2, 100, '+')),
  ):
    key = f'barrier/{measure}'
    values = [
      # Where none was replayed, as measured while training.
      (e and e.barrier.get(measure)) or run.last(key)
      for e, run in zip(replayed, runs, strict=True)
    ]
    yield column(key, group, show, True, values, measure=kind)
  # A mean over fewer is noisier, but may be of those who know.
  values = [e and e.effective_clients for e in replayed]
  yield column(
    'effective_clients', 'Effective clients', _rounded(1), None, values
  )
  # Fewer rounds are not a saving.
  fewer = True if len({run.last_round for run in runs}) == 1 else None
  key = 'communication/uplink_units'
  yield metric(key, 'Uplink (units)', _count, fewer, measure='cost')
  key = 'communication/total_units'
  yield metric(key, 'Both ways (units)', _count, fewer)
  key, group = 'seconds_per_round', 'Seconds per round'
  yield timing(key, group, _seconds, True, 'seconds', measure='cost')
  key, group = 'tokens_per_second', f'{words.unit.capitalize()}s per second'
  yield timing(key, group, '{:,.0f}'.format, False, key)
  key, group = 'peak_memory_bytes', 'Peak memory (GiB)'
  yield timing(key, group, lambda value: f'{value / 2**30:.2f}', True, key)
  yield metric('round', 'Rounds', _count, None, panel='training')
  label, show = words.loss_label, _rounded(3)
  yield metric('train/loss', f'Train {label}', show, None, panel='training')
  yield metric(
    'held_out/loss', f'Held-out {label}', show, True, panel='training'
  )
  key, group = 'held_out/accuracy', f'Held-out {words.accuracy_label}'
  yield metric(key, group, _rounded(1, 100), False, panel='training')
  for name in _method_columns(runs):
    yield metric(name, name, _signed_count, None, panel='method')


def _method_columns(runs: Sequence[Run]) -> Iterable[str]:
  """Returns columns that methods add; not those that end at 0 in all runs."""
  return dict.fromkeys(
    column.name
    for run in runs
    if (config := run.train_config)
    for column in config.method.columns(config)
    if run.last(column.name)
  )


def _cells(column: Column, runs: Sequence[Run]) -> list[Cell]:
  values = column.values
  texts = [v and column.show(v.mean) for v in values]
  best = {
    corpus: _best(
      column,
      [v for v, r in zip(values, runs, strict=True) if r.corpus_kind == corpus],
    )
    for corpus in {run.corpus_kind for run in runs}
  }
  return [
    Cell(
      value=value,
      text=text or '–',
      interval_text=''
      if value is None or value.ci_low is None
      else f'{column.show(value.ci_low)} to {column.show(value.ci_high)}',
      is_best=text is not None and text == best[run.corpus_kind],
    )
    for value, text, run in zip(values, texts, runs, strict=True)
  ]


def _best(column, values):
  """Returns the best value as shown; None if nothing is told apart."""
  means = [value.mean for value in values if value]
  if column.lower_is_better is None or len(means) < 2:
    return None
  best = column.show((min if column.lower_is_better else max)(means))
  # Equal as shown is equal: a tie in all rows tells nothing apart.
  return None if all(column.show(mean) == best for mean in means) else best


def _console_heading(table, index):
  column = table.columns[index]
  panel, _, corpus = column.panel.partition(': ')
  corpora = {c.panel for c in table.columns if c.panel.startswith(panel)}
  words = {'held_out': 'Held-out', 'transfer': 'Transfer'}.get(panel, '')
  parts = [
    words,
    corpus if len(corpora) > 1 else '',
    column.group.split(' (')[0].removeprefix('Token ').replace(', ', '\n'),
    column.heading,
  ]
  return '\n'.join(part for part in parts if part)


def _rounded(places: int, scale: float = 1, sign: str = ''):
  return lambda value: shown(value, places, scale, sign)


def _count(value):
  return f'{value:,.0f}' if abs(value) >= 10_000 else f'{value:.5g}'


def _signed_count(value):
  return _count(value).replace('-', '−')


def _seconds(value):
  places = 1
  if 0.001 <= value < 10:
    places = max(0, 1 - math.floor(math.log10(value)))
  return f'{value:.{places}f}'
