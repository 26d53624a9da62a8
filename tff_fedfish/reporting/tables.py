"""The main table: one row per run, one column per score and cost."""

import csv
import dataclasses
import io
from collections.abc import Collection, Sequence

from tff_fedfish.reporting.columns import Column, main_columns
from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.runs import Run


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

  def panel(self, name: str) -> 'MainTable':
    """Returns the table with the columns of one panel only."""
    kept = [i for i, c in enumerate(self.columns) if c.panel == name]
    return MainTable(
      self.runs,
      tuple(self.columns[i] for i in kept),
      tuple(tuple(row[i] for i in kept) for row in self.cells),
    )


def build_main_table(runs: Sequence[Run]) -> MainTable:
  """Returns the main table; columns in which no run has a value are left out.

  Args:
    runs: The runs of the report, in the order of the rows.

  Returns:
    The table. The best values of a column are marked if at least two runs have
    one and they are not all shown alike, among the runs of each `data.corpus`.
  """
  columns, by_column = [], []
  for column in main_columns(runs):
    values = [column.value(run) for run in runs]
    if any(value is not None for value in values):
      columns.append(column)
      by_column.append(_cells(column, values, runs))
  return MainTable(
    tuple(runs),
    tuple(columns),
    tuple(zip(*by_column, strict=True)) if columns else ((),) * len(runs),
  )


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
  kept = [
    i for i, column in enumerate(table.columns) if column.measure in measures
  ]
  headers = ['Run'] + [_console_heading(table, i) for i in kept]
  rows = [
    [run.label] + [row[i].text + (' *' if row[i].is_best else '') for i in kept]
    for run, row in zip(table.runs, table.cells, strict=True)
  ]
  return headers, rows


def summary_csv(table: MainTable) -> str:
  """Returns the main table as CSV, with the ends of intervals as columns."""
  with_interval = [
    any(row[i].value and row[i].value.ci_low is not None for row in table.cells)
    for i in range(len(table.columns))
  ]
  header = ['run', 'directory', 'method', 'num_local_epochs', 'round']
  for column, has_interval in zip(table.columns, with_interval, strict=True):
    ends = ('/ci_low', '/ci_high') if has_interval else ()
    header += [column.key + end for end in ('', *ends)]
  file = io.StringIO()
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(header)
  for run, row in zip(table.runs, table.cells, strict=True):
    line = [
      csv_text(run.label),
      csv_text(run.name),
      csv_text(run.algorithm),
      run.num_local_epochs,
      run.last_round,
    ]
    for cell, has_interval in zip(row, with_interval, strict=True):
      value = cell.value
      line.append(value and repr(value.mean))
      if has_interval:
        line += [value and value.ci_low, value and value.ci_high]
    writer.writerow(['' if item is None else item for item in line])
  return file.getvalue()


def csv_text(text: str) -> str:
  """Returns a text that spreadsheets take for text, not for a formula.

  Args:
    text: From a file or a directory's name.
  """
  return (
    f"'{text}" if text.startswith(('=', '+', '-', '@', '\t', '\r')) else text
  )


def _cells(column, values, runs):
  shown = [None if v is None else column.show(v.mean) for v in values]
  best = {
    corpus: _best(
      column,
      [
        value
        for value, run in zip(values, runs, strict=True)
        if value is not None and run.corpus_kind == corpus
      ],
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
    for value, text, run in zip(values, shown, runs, strict=True)
  ]


def _best(column, values):
  """Returns the best value as shown; None if nothing is told apart."""
  if column.lower_is_better is None or len(values) < 2:
    return None
  choose = min if column.lower_is_better else max
  best = column.show(choose(v.mean for v in values))
  # Equal as shown is equal: a tie in all rows tells nothing apart.
  return None if all(column.show(v.mean) == best for v in values) else best


def _console_heading(table, index):
  column = table.columns[index]
  panel, _, corpus = column.panel.partition(': ')
  corpora = {c.panel for c in table.columns if c.panel.startswith('transfer')}
  words = {'held_out': 'Held-out', 'transfer': 'Transfer'}.get(panel, '')
  parts = [
    words,
    corpus if len(corpora) > 1 else '',
    column.group.split(' (')[0].removeprefix('Token ').replace(', ', '\n'),
    column.heading,
  ]
  return '\n'.join(part for part in parts if part)
