"""The tables of Dhawan et al. (2024), FedFish, with our numbers and theirs.

Tables 3 (fixed compute and fixed rounds), 4 (by share of data), 5 (after half
of the rounds) and 6 (Fisher of the last epoch). A table without a number of
ours is left out.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from tff_fedfish.methods import registry
from tff_fedfish.reporting import matching
from tff_fedfish.reporting.evaluations import Evaluation
from tff_fedfish.reporting.fixed_budgets import (
  FIXED_COMPUTE,
  PAPER_LOCAL_EPOCHS,
  Budgets,
  find_budgets,
)
from tff_fedfish.reporting.paper_rows import (
  Cell,
  Column,
  TableRow,
  difference,
)
from tff_fedfish.reporting.papers import fed_fish
from tff_fedfish.reporting.papers.fed_fish import Task
from tff_fedfish.reporting.repetitions import with_seed
from tff_fedfish.reporting.runs import Run, transfer_corpora
from tff_fedfish.reporting.words import holds_images

LAST, HALF = 'last', 'half'


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
  differences: tuple[str, ...]
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
  studies = matching.studies(runs)
  for members, setting in zip(
    studies, matching.study_labels(studies), strict=True
  ):
    if budgets := find_budgets(members):
      tables += _Study(members, budgets, setting).tables()
  return tables


@dataclasses.dataclass(frozen=True)
class _Entry:
  """A method's run in a row, and where its numbers come from."""

  method: str
  run_of: Mapping[str, Run]  # By stage.
  evaluation_of: Mapping[str, Evaluation]
  further: tuple[Run, ...]


class _Study:
  """Runs that differ in method, local epochs and rounds only."""

  def __init__(self, runs: Sequence[Run], budgets: Budgets, setting: str):
    self._runs = runs
    self._budgets = budgets
    self._setting = setting
    self._methods = matching.methods(runs)
    self._task = fed_fish.nearest_task(runs[0])

  def tables(self) -> Iterator[PaperTable]:
    is_by_epochs = len({run.num_local_epochs for run in self._runs}) > 1
    if is_by_epochs or holds_images(self._runs[0]):
      yield from self._table(3, self._budgets.names, (0.0, None), ('accuracy',))
    both = ('accuracy', 'loss')
    yield from self._table(4, (LAST,), None, both)
    yield from self._table(5, (HALF,), None, both)
    if any(
      fed_fish.method_of_paper(run) == fed_fish.LAST_EPOCH for run in self._runs
    ):
      yield from self._table(6, (LAST,), (0.0, None), both)

  def _table(self, number, stages, fractions, measures) -> Iterator[PaperTable]:
    """Yields the table if it has a number; a fraction None is the largest."""
    blocks = list(self._blocks(number, stages))
    entries = [entry for _, block in blocks for entry in block]
    shown = [e for entry in entries for e in entry.evaluation_of.values()]
    found = sorted({f for evaluation in shown for f in evaluation.fractions})
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
    rows = []
    for place, block in blocks:
      rows += self._rows(number, place, block, columns)
    if not any(cell.ours for row in rows for cell in row.cells):
      return
    further = {run.label for e in entries for run in e.further}
    has_final = {e.run_of[s].label for e in entries for s in e.run_of}
    yield PaperTable(
      number=number,
      corpus=fed_fish.corpus_name(self._runs[0]),
      columns=tuple(columns),
      rows=tuple(rows),
      task=self._task,
      differences=tuple(
        fed_fish.differences(self._task, self._runs, shown, self._budgets)
        if self._task
        else ()
      ),
      left_out=tuple(
        run.label for run in self._runs if run.label not in has_final | further
      )
      if number == 4
      else (),
      setting=self._setting,
      further=tuple(run.label for run in self._runs if run.label in further),
    )

  def _blocks(self, number, stages):
    """Yields ((evaluated on, kind, E), entries) of blocks of rows."""
    own = fed_fish.corpus_name(self._runs[0])
    targets: list[tuple[str, str, Callable]] = [
      (
        own,
        'held_out',
        lambda run, at: run.evaluation_at('held_out', None, at),
      )
    ]
    if number in (4, 5):
      targets += [
        (
          # Another directory may have the same name.
          f'{c} (transfer)' if c == own else c,
          'transfer',
          lambda run, at, c=c: run.evaluation_at('transfer', c, at),
        )
        for c in transfer_corpora(self._runs)
      ]
    shapes = sorted(
      {
        # In Table 3 the rounds are what the columns differ in.
        (run.num_local_epochs, 0 if number == 3 else -run.num_rounds)
        for run in self._runs
        if run.num_local_epochs is not None and run.num_rounds is not None
      }
    )
    for evaluated_on, kind, choose in targets:
      for epochs, minus_rounds in shapes:
        entries = []
        for method, members in self._methods:
          fitting = [
            run
            for run in members
            if run.num_local_epochs == epochs
            and minus_rounds in (0, -(run.num_rounds or 0))
          ]
          entry = self._entry(method, fitting, stages, choose)
          if entry.run_of:
            entries.append(entry)
        if entries:
          yield (evaluated_on, kind, epochs), entries

  def _entry(self, method, runs, stages, choose) -> _Entry:
    run_of, evaluation_of, further = {}, {}, []
    for stage in stages:
      for run in runs:
        at = run.num_rounds
        if at is None or (stage == HALF and at % 2):
          continue
        is_of_budget = stage in (LAST, HALF) or self._budgets.holds(stage, run)
        evaluation = choose(run, at // 2 if stage == HALF else at)
        if is_of_budget and evaluation and stage in run_of:
          further.append(run)
        elif is_of_budget and evaluation:
          if not run.repetitions:
            evaluation = with_seed(evaluation, matching.seeds_of(run))
          run_of[stage], evaluation_of[stage] = run, evaluation
    return _Entry(method, run_of, evaluation_of, tuple(further))

  def _rows(self, number, place, entries, columns):
    """Yields a row per method, then its differences from the baseline."""
    evaluated_on, kind, epochs = place
    rows = []
    for entry in entries:
      rows.append(
        TableRow(
          evaluated_on=evaluated_on,
          kind=kind,
          num_local_epochs=epochs,
          num_rounds=_sorted({r.num_rounds for r in entry.run_of.values()}),
          method=entry.method,
          num_seeds=_sorted(
            {e.num_seeds for e in entry.evaluation_of.values()}
          ),
          cells=tuple(
            Cell(_ours(entry, c), self._printed(number, entry, c))
            for c in columns
          ),
        )
      )
    yield from rows
    algorithms = [next(iter(e.run_of.values())).algorithm for e in entries]
    if algorithms.count(registry.BASELINE.name) != 1:
      return
    index = algorithms.index(registry.BASELINE.name)
    for row, entry in zip(rows, entries, strict=True):
      if entry is not entries[index]:
        is_paired = [_is_paired(entry, entries[index], c) for c in columns]
        found = difference(row, rows[index], is_paired)
        if any(cell.ours for cell in found.cells):
          yield found

  def _printed(self, number, entry, column) -> float | None:
    """Returns the paper's number beside one of ours."""
    run = entry.run_of.get(column.stage)
    # Runs of the other budget have fewer or more rounds than R.
    if (
      run is None
      or self._task is None
      or (number != 3 and run.num_rounds != self._budgets.num_rounds)
      or (
        # Another total of local epochs than the paper's column is of.
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
      stage=column.stage,
      fraction=column.fraction,
      measure=column.measure,
    )


def _is_paired(entry, baseline, column) -> bool:
  """Returns whether both scored the same clients after the same fine-tuning."""
  a, b = (e.evaluation_of.get(column.stage) for e in (entry, baseline))
  if a is None or b is None or a.personalization != b.personalization:
    return False
  clients, others = (
    {c.client_id for c in e.clients_at(column.fraction)} for e in (a, b)
  )
  return clients == others


def _ours(entry, column):
  evaluation = entry.evaluation_of.get(column.stage)
  score = evaluation and evaluation.fractions.get(column.fraction)
  return getattr(score, column.measure) if score else None


def _sorted(values):
  return tuple(sorted(values))
