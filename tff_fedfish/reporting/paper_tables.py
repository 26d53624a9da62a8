"""The tables of Dhawan et al. (2024), FedFish, with our numbers and theirs.

Tables 3 (fixed compute and fixed rounds), 4 (by share of data), 5 (after half
of the rounds) and 6 (Fisher of the last epoch). A table without a number of
ours is left out.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tff_fedfish.methods import registry
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.csv_files import csv_file
from tff_fedfish.reporting.evaluations import Evaluation, Interval
from tff_fedfish.reporting.fixed_budgets import (
  FIXED_COMPUTE,
  PAPER_LOCAL_EPOCHS,
  Budgets,
  find_budgets,
)
from tff_fedfish.reporting.papers import fed_fish
from tff_fedfish.reporting.papers.fed_fish import Task
from tff_fedfish.reporting.repetitions import with_seed
from tff_fedfish.reporting.runs import HELD_OUT, Run, Subject, subjects
from tff_fedfish.reporting.words import Words, holds_images, shown

LAST, HALF = 'last', 'half'

_CSV_NAMES = (
  *('table', 'trained_on', 'setting', 'evaluated_on', 'evaluated_kind'),
  *('num_local_epochs', 'num_rounds'),
  *('method', 'stage', 'fraction', 'measure', 'mean', 'sd_over_seeds'),
  *('num_seeds', 'ci_low', 'ci_high', 'paper', 'paper_corpus', 'same_corpus'),
)


class Column(NamedTuple):
  """Meaning of a number.

  Attributes:
    stage: When it was scored: a budget, `LAST` or `HALF`.
    fraction: Share of the client's data that was personalized on.
    measure: 'accuracy' or 'loss'.
  """

  stage: str
  fraction: float
  measure: str


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
    num_rounds: Of the runs whose numbers these are, ascending.
    method: Its name; 'FedFish − FedAvg' for a difference.
    num_seeds: Seeds of each number, ascending.
    cells: One for each column.
    is_difference: Whether it is one.
  """

  evaluated_on: str
  kind: str
  num_local_epochs: int | float
  num_rounds: tuple[int, ...]
  method: str
  num_seeds: tuple[int, ...]
  cells: tuple[Cell, ...]
  is_difference: bool = False


@dataclasses.dataclass(frozen=True)
class PaperTable:
  """One table.

  Attributes:
    number: That of the paper's table.
    corpus: That our runs were trained on.
    columns: What the numbers are.
    rows: In blocks of equal clients, local epochs and rounds.
    task: The paper's corpus whose numbers stand beside ours, if any.
    differences: In what else our runs differ from the paper.
    left_out: Labels of runs without an evaluation after their last round.
    further: Labels of runs of which another one, of the same method, local
      epochs and rounds, has the row.
    setting: What tells the runs from those of other tables of equal number,
      such as 'partition.alpha = 0.1'; '' if nothing does.
  """

  number: int
  corpus: str
  columns: tuple[Column, ...]
  rows: tuple[TableRow, ...]
  task: Task | None
  differences: Sequence[str]
  left_out: tuple[str, ...]
  further: tuple[str, ...] = ()
  setting: str = ''

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
    if budgets := find_budgets(members):
      tables += _Study(members, budgets, setting).tables()
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


def show(value: float, measure: str, is_difference: bool = False) -> str:
  """Returns a number as text: accuracies in percent, losses in nats.

  Args:
    value: The number.
    measure: 'accuracy' or 'loss'.
    is_difference: Whether to show its sign.
  """
  places, scale = (2, 100) if measure == 'accuracy' else (3, 1)
  return shown(value, places, scale, '+' if is_difference else '')


def headings(
  columns: Sequence[Column], words: Words
) -> tuple[list[tuple[str, int]], list[str]]:
  """Returns the two rows of headings over the numbers.

  Args:
    columns: Of a table; equal fractions stand together.
    words: Of what was predicted.

  Returns:
    (heading, number of columns) of the upper row, and the lower row: measures,
    or the stages where all is of one measure.
  """
  is_by_stage = len({column.stage for column in columns}) > 1

  def group(column):
    place = 'Global'
    if column.fraction > 0:
      place = f'Personalized on {100 * column.fraction:g} %'
    return f'{place}: {words.accuracy_label}' if is_by_stage else place

  groups = matching.grouped(columns, group)
  # The unit of the loss stands above the tables.
  labels = {'loss': 'Loss', 'accuracy': 'Accuracy (%)'}
  names = [c.stage if is_by_stage else labels[c.measure] for c in columns]
  return [(name, len(found)) for name, found in groups.items()], names


@dataclasses.dataclass(frozen=True)
class _Entry:
  """A method's runs in a row with their evaluations, by stage."""

  method: str
  run_of: Mapping[str, Run]
  evaluation_of: Mapping[str, Evaluation]
  further: tuple[Run, ...]

  @property
  def is_baseline(self) -> bool:
    run = next(iter(self.run_of.values()))
    return run.algorithm == registry.BASELINE.name

  def ours(self, column: Column) -> Interval | None:
    evaluation = self.evaluation_of.get(column.stage)
    return evaluation and evaluation.score(column.fraction, column.measure)


class _Study:
  """Runs that differ in method, local epochs and rounds only."""

  def __init__(self, runs: Sequence[Run], budgets: Budgets, setting: str):
    self._runs = runs
    self._budgets = budgets
    self._setting = setting
    self._methods = matching.methods(runs)
    self._corpus = fed_fish.corpus_name(runs[0])
    self._task = fed_fish.nearest_task(runs[0])

  def tables(self) -> Iterator[PaperTable]:
    is_by_epochs = len({run.num_local_epochs for run in self._runs}) > 1
    methods = {fed_fish.method_of_paper(run) for run in self._runs}
    ends, both = (0.0, None), ('accuracy', 'loss')
    if is_by_epochs or holds_images(self._runs[0]):
      yield from self._table(3, self._budgets.names, ends, ('accuracy',))
    yield from self._table(4, (LAST,), None, both)
    yield from self._table(5, (HALF,), None, both)
    if fed_fish.LAST_EPOCH in methods:
      yield from self._table(6, (LAST,), ends, both)

  def _table(self, number, stages, fractions, measures) -> Iterator[PaperTable]:
    """Yields the table if it has a number; a fraction None is the largest."""
    blocks = list(self._blocks(number, stages))
    entries = [entry for _, block in blocks for entry in block]
    scored = [e for entry in entries for e in entry.evaluation_of.values()]
    found = sorted({f for evaluation in scored for f in evaluation.fractions})
    if not found:
      return
    if fractions:
      wanted = {found[-1] if f is None else f for f in fractions}
      found = [f for f in found if f in wanted]
    columns = [
      Column(stage, fraction, measure)
      for fraction in found
      for stage in stages
      for measure in measures
    ]
    rows = tuple(
      row
      for place, block in blocks
      for row in self._rows(number, place, block, columns)
    )
    if not any(cell.ours for row in rows for cell in row.cells):
      return
    further = {run.label for e in entries for run in e.further}
    has_row = {
      run.label for e in entries for run in e.run_of.values()
    } | further
    labels = [run.label for run in self._runs]
    yield PaperTable(
      number=number,
      corpus=self._corpus,
      columns=tuple(columns),
      rows=rows,
      task=self._task,
      differences=tuple(
        fed_fish.differences(self._task, self._runs, scored, self._budgets)
        if self._task
        else ()
      ),
      left_out=tuple(x for x in labels if number == 4 and x not in has_row),
      setting=self._setting,
      further=tuple(label for label in labels if label in further),
    )

  def _blocks(self, number, stages):
    """Yields ((evaluated on, kind, E), entries) of blocks of rows."""
    # In Table 3 the rounds are what the columns differ in.
    shapes = sorted(
      {
        (run.num_local_epochs, 0 if number == 3 else -run.num_rounds)
        for run in self._runs
        if run.num_local_epochs is not None and run.num_rounds is not None
      }
    )
    targets = subjects(self._runs) if number in (4, 5) else [HELD_OUT]
    for subject in targets:
      name = subject.corpus or self._corpus
      if subject.corpus == self._corpus:
        # Another directory may have the same name.
        name = f'{name} (transfer)'
      for epochs, minus_rounds in shapes:
        entries = []
        for method, members in self._methods.items():
          fitting = [
            run
            for run in members
            if run.num_local_epochs == epochs
            and minus_rounds in (0, -(run.num_rounds or 0))
          ]
          entry = self._entry(method, fitting, stages, subject)
          if entry.run_of:
            entries.append(entry)
        if entries:
          yield (name, subject.kind, epochs), entries

  def _entry(self, method, runs, stages, subject: Subject) -> _Entry:
    run_of, evaluation_of, further = {}, {}, []
    for stage in stages:
      for run in runs:
        at = run.num_rounds
        if at is None or (stage == HALF and at % 2):
          continue
        if stage not in (LAST, HALF) and not self._budgets.holds(stage, run):
          continue
        evaluation = run.evaluation(subject, at // 2 if stage == HALF else at)
        if evaluation and stage in run_of:
          further.append(run)
        elif evaluation:
          if not run.repetitions:
            evaluation = with_seed(evaluation, matching.seeds_of(run))
          run_of[stage], evaluation_of[stage] = run, evaluation
    return _Entry(method, run_of, evaluation_of, tuple(further))

  def _rows(self, number, place, entries, columns) -> Iterator[TableRow]:
    """Yields a row per method, then its differences from the baseline."""
    rows = [
      TableRow(
        *place,
        num_rounds=_ascending(r.num_rounds for r in entry.run_of.values()),
        method=entry.method,
        num_seeds=_ascending(e.num_seeds for e in entry.evaluation_of.values()),
        cells=tuple(
          Cell(entry.ours(c), self._printed(number, entry, c)) for c in columns
        ),
      )
      for entry in entries
    ]
    yield from rows
    if [entry.is_baseline for entry in entries].count(True) != 1:
      return
    found = list(zip(rows, entries, strict=True))
    baseline = next(pair for pair in found if pair[1].is_baseline)
    for row, entry in found:
      if entry is not baseline[1]:
        is_paired = [_is_paired(entry, baseline[1], c) for c in columns]
        difference = _difference(row, baseline[0], is_paired)
        if any(cell.ours for cell in difference.cells):
          yield difference

  def _printed(self, number, entry, column) -> float | None:
    """Returns the paper's number beside one of ours."""
    run = entry.run_of.get(column.stage)
    # Runs of the other budget have fewer or more rounds than R, and fixed
    # compute of another reference another total than the paper's column.
    if (
      run is None
      or self._task is None
      or (number != 3 and run.num_rounds != self._budgets.num_rounds)
      or (
        column.stage == FIXED_COMPUTE
        and self._budgets.local_epochs != PAPER_LOCAL_EPOCHS
      )
    ):
      return None
    evaluation = entry.evaluation_of[column.stage]
    return fed_fish.find_value(
      table=number,
      corpus=self._task.corpus,
      num_local_epochs=run.num_local_epochs,
      method=fed_fish.method_of_paper(run),
      evaluated_on=fed_fish.evaluated_corpus(self._task, evaluation),
      **column._asdict(),
    )


def _is_paired(entry: _Entry, baseline: _Entry, column: Column) -> bool:
  """Returns whether both scored the same clients after the same fine-tuning."""
  a, b = (e.evaluation_of.get(column.stage) for e in (entry, baseline))
  if a is None or b is None or a.personalization != b.personalization:
    return False
  clients = (e.clients_at(column.fraction)['client_id'] for e in (a, b))
  return len(set(map(frozenset, clients))) == 1


def _difference(
  row: TableRow, baseline: TableRow, is_paired: Sequence[bool]
) -> TableRow:
  """Returns the row of one method minus another, ours and the paper's.

  Differences of the means are over the seeds that both have; none, of ours and
  the paper's, where they share no seed or are not paired.
  """
  cells = []
  for a, b, paired in zip(row.cells, baseline.cells, is_paired, strict=True):
    ours = _interval_difference(a.ours, b.ours) if paired else None
    has_paper = ours and None not in (a.paper, b.paper)
    cells.append(Cell(ours, a.paper - b.paper if has_paper else None))
  return dataclasses.replace(
    row,
    method=f'{row.method} − {baseline.method}',
    num_seeds=_ascending(len(c.ours.seed_means) or 1 for c in cells if c.ours),
    cells=tuple(cells),
    is_difference=True,
  )


def _interval_difference(a, b) -> Interval | None:
  """Returns a - b over the seeds that both have; None without such seeds."""
  others = dict(b.seed_means) if a and b else {}
  means = tuple(
    (seeds, mean - others[seeds])
    for seeds, mean in (a.seed_means if a else ())
    if seeds in others
  )
  if not means:
    return None
  return Interval(sum(m for _, m in means) / len(means), seed_means=means)


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
