"""The tables of Dhawan et al. (2024), FedFish, with our numbers and theirs.

Tables 3 (fixed compute and fixed rounds), 4 (by share of data), 5 (after half
of the rounds) and 6 (Fisher of the last epoch). A table without a number of
ours is left out.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from tff_fedfish.methods import registry
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.csv_files import csv_file
from tff_fedfish.reporting.evaluations import Evaluation, Interval
from tff_fedfish.reporting.fixed_budgets import (
  FIXED_COMPUTE,
  PAPER_LOCAL_EPOCHS,
  find_budgets,
)
from tff_fedfish.reporting.papers import fed_fish
from tff_fedfish.reporting.papers.fed_fish import Task
from tff_fedfish.reporting.repetitions import with_seed
from tff_fedfish.reporting.runs import Run, subjects
from tff_fedfish.reporting.words import holds_images

LAST, HALF = 'last', 'half'

_CSV_NAMES = (
  *('table', 'trained_on', 'setting', 'evaluated_on', 'evaluated_kind'),
  *('num_local_epochs', 'num_rounds'),
  *('method', 'stage', 'fraction', 'measure', 'mean', 'sd_over_seeds'),
  *('num_seeds', 'ci_low', 'ci_high', 'paper', 'paper_corpus', 'same_corpus'),
)

# Columns of a table of scored runs.
_SCORED = (
  *('subject', 'num_local_epochs', 'minus_rounds', 'method', 'stage'),
  *('run', 'evaluation'),
)


class Column(NamedTuple):
  """Meaning of a number: when it was scored, after which personalization."""

  stage: str  # A budget, `LAST` or `HALF`.
  fraction: float
  measure: str  # 'accuracy' or 'loss'.


class Cell(NamedTuple):
  """Our number, with its seeds, and the paper's."""

  ours: Interval | None
  paper: float | None


@dataclasses.dataclass(frozen=True)
class TableRow:
  """One method, or the difference of two, in one setting.

  Attributes:
    evaluated_on: Whose clients were scored.
    kind: 'held_out' or 'transfer'.
    num_local_epochs: E.
    method: Its name; 'FedFish − FedAvg' for a difference.
    num_rounds: Of the runs whose numbers these are, ascending.
    num_seeds: Seeds of each number, ascending.
    cells: One for each column.
    is_difference: Whether it is one.
  """

  evaluated_on: str
  kind: str
  num_local_epochs: int | float
  method: str
  num_rounds: tuple[int, ...]
  num_seeds: tuple[int, ...]
  cells: tuple[Cell, ...]
  is_difference: bool = False


@dataclasses.dataclass(frozen=True)
class PaperTable:
  """One table.

  Attributes:
    number: That of the paper's table.
    corpus: That our runs were trained on.
    setting: What tells the runs from those of other tables of equal number,
      such as 'partition.alpha = 0.1'; '' if nothing does.
    task: The paper's corpus whose numbers stand beside ours, if any.
    columns: What the numbers are.
    rows: In blocks of equal clients, local epochs and rounds.
    differences: In what else our runs differ from the paper.
    left_out: Labels of runs without an evaluation after their last round.
    further: Labels of runs of which another one, of the same method, local
      epochs and rounds, has the row.
  """

  number: int
  corpus: str
  setting: str
  task: Task | None
  columns: Sequence[Column]
  rows: Sequence[TableRow]
  differences: tuple[str, ...]
  left_out: tuple[str, ...]
  further: tuple[str, ...]

  @property
  def has_paper(self) -> bool:
    """Whether any number of the paper stands in it."""
    return any(c.paper is not None for row in self.rows for c in row.cells)

  @property
  def has_spread(self) -> bool:
    """Whether any number is a mean over seeds."""
    return any(n > 1 for row in self.rows for n in row.num_seeds)


def build_paper_tables(runs: Sequence[Run]) -> list[PaperTable]:
  """Returns the tables that the runs have numbers for.

  Args:
    runs: The runs of a report, repetitions pooled.

  Returns:
    Tables by corpus and setting, then by number.
  """
  tables = []
  for setting, members in matching.studies(runs).items():
    study = _Study(members, setting)
    if study.budgets:
      tables += study.tables()
  return tables


def paper_tables_csv(tables: Sequence[PaperTable]) -> str:
  """Returns the numbers one a line, in full precision, accuracies in [0, 1]."""
  return csv_file(
    _CSV_NAMES,
    (
      [
        *(table.number, table.corpus, table.setting),
        *(row.evaluated_on, row.kind, row.num_local_epochs),
        *('/'.join(map(str, row.num_rounds)), row.method),
        *column,
        *_our_cells(cell.ours),
        *_paper_cells(table, cell.paper),
      ]
      for table in tables
      for row in table.rows
      for column, cell in zip(table.columns, row.cells, strict=True)
    ),
  )


class _Study:
  """Runs that differ in method, local epochs and rounds only."""

  def __init__(self, runs: Sequence[Run], setting: str):
    self.budgets = find_budgets(runs)
    self._runs = runs
    self._setting = setting
    self._corpus = fed_fish.corpus_name(runs[0])
    self._task = fed_fish.nearest_task(runs[0])

  def tables(self) -> Iterator[PaperTable]:
    is_by_epochs = len({run.num_local_epochs for run in self._runs}) > 1
    methods = {fed_fish.method_of_paper(run) for run in self._runs}
    ends, both = (0.0, None), ('accuracy', 'loss')
    if is_by_epochs or holds_images(self._runs[0]):
      yield from self._table(3, self.budgets.names, ends, ('accuracy',))
    yield from self._table(4, (LAST,), None, both)
    yield from self._table(5, (HALF,), None, both)
    if fed_fish.LAST_EPOCH in methods:
      yield from self._table(6, (LAST,), ends, both)

  def _table(self, number, stages, fractions, measures) -> Iterator[PaperTable]:
    """Yields the table if it has a number; a fraction None is the largest."""
    scored = self._scored(stages, has_transfer=number in (4, 5))
    # In Table 3 the rounds are what the columns differ in.
    rounds = [] if number == 3 else ['minus_rounds']
    block = ['subject', 'num_local_epochs', *rounds]
    is_further = scored.duplicated([*block, 'method', 'stage'])
    further, scored = scored[is_further], scored[~is_further]
    found = sorted({f for e in scored['evaluation'] for f in e.fractions})
    if fractions:
      found = [f for f in found if f in (0.0, found[-1])]
    columns = [
      Column(stage, fraction, measure)
      for fraction in found
      for stage in stages
      for measure in measures
    ]
    rows = [
      row
      for _, entries in scored.groupby(block)
      for row in self._rows(number, entries, columns)
    ]
    if not any(cell.ours for row in rows for cell in row.cells):
      return
    has_row = {run.label for run in [*scored['run'], *further['run']]}
    labels = [run.label for run in self._runs]
    yield PaperTable(
      number=number,
      corpus=self._corpus,
      setting=self._setting,
      task=self._task,
      columns=columns,
      rows=rows,
      differences=tuple(
        fed_fish.differences(
          self._task, self._runs, scored['evaluation'], self.budgets
        )
        if self._task
        else ()
      ),
      left_out=tuple(x for x in labels if number == 4 and x not in has_row),
      further=tuple(
        x for x in labels if x in {run.label for run in further['run']}
      ),
    )

  def _scored(self, stages, has_transfer) -> pd.DataFrame:
    """Returns a row per method, subject, stage and run with an evaluation."""
    rows = []
    targets = subjects(self._runs)
    for number, subject in enumerate(targets if has_transfer else targets[:1]):
      for method, members in matching.methods(self._runs).items():
        for stage, run in itertools.product(stages, members):
          at, epochs = run.num_rounds, run.num_local_epochs
          if None in (at, epochs) or (stage == HALF and at % 2):
            continue
          if stage not in (LAST, HALF) and not self.budgets.holds(stage, run):
            continue
          evaluation = run.evaluation(subject, at // 2 if stage == HALF else at)
          if evaluation:
            if not run.repetitions:
              evaluation = with_seed(evaluation, matching.seeds_of(run))
            key = (number, epochs, -at, method, stage)
            rows.append((*key, run, evaluation))
    return pd.DataFrame(rows, columns=_SCORED)

  def _rows(self, number, entries, columns) -> Iterator[TableRow]:
    """Yields a row per method, then its differences from the baseline."""
    rows, by_method = [], []
    for method, own in entries.groupby('method', sort=False):
      by_stage = own.set_index('stage')
      evaluations = by_stage['evaluation']
      first = evaluations.iloc[0]
      rows.append(
        TableRow(
          self._evaluated_on(first),
          first.kind,
          by_stage['run'].iloc[0].num_local_epochs,
          method,
          _ascending(run.num_rounds for run in by_stage['run']),
          _ascending(e.num_seeds for e in evaluations),
          tuple(
            Cell(
              evaluations[c.stage].score(c.fraction, c.measure),
              self._printed(
                number, *by_stage.loc[c.stage, ['run', 'evaluation']], c
              ),
            )
            if c.stage in by_stage.index
            else Cell(None, None)
            for c in columns
          ),
        )
      )
      by_method.append(by_stage)
    yield from rows
    baselines = [
      k
      for k, own in enumerate(by_method)
      if own['run'].iloc[0].algorithm == registry.BASELINE.name
    ]
    if len(baselines) != 1:
      return
    for row, own in zip(rows, by_method, strict=True):
      other = by_method[baselines[0]]
      if own is not other:
        is_paired = [_is_paired(own, other, c) for c in columns]
        difference = _difference(row, rows[baselines[0]], is_paired)
        if any(cell.ours for cell in difference.cells):
          yield difference

  def _evaluated_on(self, evaluation: Evaluation) -> str:
    if evaluation.kind != 'transfer':
      return self._corpus
    # Another directory may have the same name.
    is_twin = evaluation.corpus == self._corpus
    return evaluation.corpus + ' (transfer)' * is_twin

  def _printed(self, number, run, evaluation, column) -> float | None:
    """Returns the paper's number beside one of ours."""
    # Runs of the other budget have fewer or more rounds than R, and fixed
    # compute of another reference another total than the paper's column.
    if (
      self._task is None
      or (number != 3 and run.num_rounds != self.budgets.num_rounds)
      or (
        column.stage == FIXED_COMPUTE
        and self.budgets.local_epochs != PAPER_LOCAL_EPOCHS
      )
    ):
      return None
    return fed_fish.find_value(
      table=number,
      corpus=self._task.corpus,
      num_local_epochs=run.num_local_epochs,
      method=fed_fish.method_of_paper(run),
      evaluated_on=fed_fish.evaluated_corpus(self._task, evaluation),
      **column._asdict(),
    )


def _is_paired(own: pd.DataFrame, other: pd.DataFrame, column: Column) -> bool:
  """Returns whether both scored the same clients after the same fine-tuning."""
  if column.stage not in own.index or column.stage not in other.index:
    return False
  a, b = (side.loc[column.stage, 'evaluation'] for side in (own, other))
  clients = (e.clients_at(column.fraction)['client_id'] for e in (a, b))
  is_same = len(set(map(frozenset, clients))) == 1
  return is_same and a.personalization == b.personalization


def _difference(
  row: TableRow, baseline: TableRow, is_paired: Sequence[bool]
) -> TableRow:
  """Returns the row of one method minus another, ours and the paper's.

  Differences of the means are over the seeds that both have; none, of ours and
  the paper's, where they share no seed or are not paired.
  """
  cells = []
  for a, b, paired in zip(row.cells, baseline.cells, is_paired, strict=True):
    others = dict(b.ours.seed_means) if paired and b.ours else {}
    means = tuple(
      (seeds, mean - others[seeds])
      for seeds, mean in (a.ours.seed_means if a.ours else ())
      if seeds in others
    )
    ours = paper = None
    if means:
      mean = sum(m for _, m in means) / len(means)
      ours = Interval(mean, seed_means=means)
      paper = None if None in (a.paper, b.paper) else a.paper - b.paper
    cells.append(Cell(ours, paper))
  return dataclasses.replace(
    row,
    method=f'{row.method} − {baseline.method}',
    num_seeds=_ascending(len(c.ours.seed_means) for c in cells if c.ours),
    cells=tuple(cells),
    is_difference=True,
  )


def _our_cells(interval):
  if interval is None:
    return (None,) * 5
  num_seeds = len(interval.seed_means) or 1
  ends = interval.ci_low, interval.ci_high
  return interval.mean, interval.sd_over_seeds, num_seeds, *ends


def _paper_cells(table, value):
  if value is None:
    return (None,) * 3
  # Differences of printed numbers have no more digits than these.
  is_same = 'yes' if table.task.is_same else 'no'
  return round(value, 6), table.task.corpus, is_same


def _ascending(values) -> tuple:
  return tuple(sorted(set(values)))
