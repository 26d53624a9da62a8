"""The tables of Dhawan et al. (2024), FedFish, with our numbers and theirs.

Tables 3 (fixed compute and fixed rounds), 4 (by share of data), 5 (after half
of the rounds) and 6 (Fisher of the last epoch). A table without a number of
ours is left out.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tff_fedfish.files import csv_file
from tff_fedfish.reporting import match
from tff_fedfish.reporting.evaluations import Evaluation, Interval
from tff_fedfish.reporting.match import (
  FIXED_COMPUTE,
  REFERENCE_LOCAL_EPOCHS,
  Budgets,
  find_budgets,
)
from tff_fedfish.reporting.papers import fed_fish
from tff_fedfish.reporting.papers.fed_fish import Task
from tff_fedfish.reporting.repetitions import mean_over_seeds
from tff_fedfish.reporting.runs import OWN_TEST, Run, subjects
from tff_fedfish.reporting.words import holds_images

LAST, HALF = 'last', 'half'

_CSV_NAMES = (
  *('table', 'trained_on', 'setting', 'evaluated_on', 'evaluated_kind'),
  *('num_local_epochs', 'num_rounds'),
  *('method', 'stage', 'fraction', 'measure', 'mean', 'sd_over_seeds'),
  *('num_seeds', 'ci_low', 'ci_high', 'paper', 'paper_corpus', 'same_corpus'),
)

# Stage -> run and evaluation of one method.
_ByStage = Mapping[str, tuple[Run, Evaluation]]


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
  """One method, or the difference of two, in one setting."""

  evaluated_on: str
  """Corpus whose clients were scored."""
  kind: str
  """'held_out' or 'transfer'."""
  num_local_epochs: int | float
  method: str
  """Its name; 'FedFish − FedAvg' for a difference."""
  num_rounds: tuple[int, ...]
  """Rounds of the runs whose numbers these are, ascending."""
  num_seeds: tuple[int, ...]
  """Seeds of each number, ascending."""
  cells: tuple[Cell, ...]
  is_difference: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """Runs that differ in method, local epochs and rounds only."""

  setting: str
  """Settings that tell the runs from those of other studies, such as
  'partition.alpha = 0.1'; '' if nothing does."""
  runs: Sequence[Run]
  budgets: Budgets
  corpus: str
  task: Task | None
  """The paper's corpus whose numbers stand beside ours, if any."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperTable(Study):
  """A table of the paper, by its number there, of a study's runs."""

  number: int
  columns: Sequence[Column]
  rows: Sequence[TableRow]
  """Rows in blocks of equal clients, local epochs and rounds."""
  differences: tuple[str, ...]
  """Further differences between our runs and those of the paper."""
  left_out: tuple[str, ...]
  """Labels of runs without an evaluation after their last round."""
  further: tuple[str, ...]
  """Labels of runs of which another one, of the same method, local epochs and
  rounds, has the row."""

  @property
  def has_paper(self) -> bool:
    """Whether any number of the paper stands in it."""
    return any(c.paper is not None for row in self.rows for c in row.cells)

  @property
  def has_spread(self) -> bool:
    """Whether any number is a mean over seeds."""
    return any(n > 1 for row in self.rows for n in row.num_seeds)


def build_paper_tables(runs: Sequence[Run]) -> list[PaperTable]:
  """Returns the tables that the pooled runs have numbers for.

  They are ordered by corpus and setting, then by number.
  """
  tables = []
  for setting, own in match.studies(runs).items():
    if not (budgets := find_budgets(own)):
      continue
    corpus, task = own[0].corpus_name, fed_fish.nearest_task(own[0])
    study = Study(
      setting=setting, runs=own, budgets=budgets, corpus=corpus, task=task
    )
    if len({r.num_local_epochs for r in own}) > 1 or holds_images(own[0]):
      tables.append(_table(study, 3, budgets.names, ('accuracy',)))
    tables.append(_table(study, 4, (LAST,)))
    tables.append(_table(study, 5, (HALF,)))
    if fed_fish.LAST_EPOCH in map(fed_fish.method_of_paper, own):
      tables.append(_table(study, 6, (LAST,)))
  return [table for table in tables if table]


def paper_tables_csv(tables: Sequence[PaperTable]) -> str:
  """Returns the numbers one a line, in full precision, accuracies in [0, 1]."""
  lines = []
  for table in tables:
    for row in table.rows:
      rounds = '/'.join(map(str, row.num_rounds))
      for column, (ours, paper) in zip(table.columns, row.cells, strict=True):
        line = [table.number, table.corpus, table.setting, row.evaluated_on]
        line += [row.kind, row.num_local_epochs, rounds, row.method, *column]
        if ours is None:
          line += [None] * 5
        else:
          line += [ours.mean, ours.sd_over_seeds, len(ours.seed_means) or 1]
          line += [ours.ci_low, ours.ci_high]
        if paper is None:
          line += [None] * 3
        else:
          # Differences of printed numbers have no more digits than these.
          is_same = 'yes' if table.task.is_same else 'no'
          line += [round(paper, 6), table.task.corpus, is_same]
        lines.append(line)
  return csv_file(_CSV_NAMES, lines)


def _table(
  study: Study,
  number: int,
  stages: Sequence[str],
  measures: Sequence[str] = ('accuracy', 'loss'),
) -> PaperTable | None:
  """Returns the table; None if it would hold no number of ours."""
  scored, further = _scored(study, number, stages)
  evaluations = [evaluation for _, evaluation in scored.values()]
  fractions = sorted({f for e in evaluations for f in e.fractions})
  if number in (3, 6):
    # Before, and after the most personalization.
    fractions = [f for f in fractions if f in (0.0, fractions[-1])]
  columns = [
    Column(stage, fraction, measure)
    for fraction in fractions
    for stage in stages
    for measure in measures
  ]
  blocks: dict[tuple, dict[str, _ByStage]] = {}
  for (block, method, stage), entry in scored.items():
    blocks.setdefault(block, {}).setdefault(method, {})[stage] = entry
  rows = [
    row
    for block in sorted(blocks)
    for row in _rows(study, number, blocks[block], columns)
  ]
  if not any(cell.ours for row in rows for cell in row.cells):
    return None
  labels = [run.label for run in study.runs]
  has_row = further | {run.label for run, _ in scored.values()}
  differences = ()
  if study.task:
    differences = fed_fish.differences(
      study.task, study.runs, evaluations, study.budgets
    )
  return PaperTable(
    **vars(study),
    number=number,
    columns=columns,
    rows=rows,
    differences=tuple(differences),
    left_out=tuple(x for x in labels if number == 4 and x not in has_row),
    further=tuple(x for x in labels if x in further),
  )


def _scored(
  study: Study, number: int, stages: Sequence[str]
) -> tuple[dict[tuple, tuple[Run, Evaluation]], set[str]]:
  """Returns the scored runs by (block, method, stage), and further labels."""
  targets = subjects(study.runs) if number in (4, 5) else subjects([])
  # No half of a client's data, which the paper scores on.
  targets = [subject for subject in targets if subject != OWN_TEST]
  scored, further = {}, set()
  methods = match.methods(study.runs)
  for place, subject in enumerate(targets):
    for method, stage in itertools.product(methods, stages):
      for run in methods[method]:
        at, epochs = run.num_rounds, run.num_local_epochs
        if None in (at, epochs) or (stage == HALF and at % 2):
          continue
        if stage not in (LAST, HALF) and not study.budgets.holds(stage, run):
          continue
        evaluation = run.evaluation(subject, at // 2 if stage == HALF else at)
        if evaluation:
          # In Table 3 the columns differ in rounds.
          block = (place, epochs, *([] if number == 3 else [-at]))
          if (block, method, stage) in scored:
            further.add(run.label)
          scored.setdefault((block, method, stage), (run, evaluation))
  return scored, further


def _rows(
  study: Study,
  number: int,
  methods: Mapping[str, _ByStage],
  columns: Sequence[Column],
) -> Iterator[TableRow]:
  """Yields a row per method, then its differences from the baseline."""
  rows, baselines = {}, []
  for method, by_stage in methods.items():
    runs, evaluations = zip(*by_stage.values(), strict=True)
    if runs[0].is_baseline:
      baselines.append(method)
    place, kind = study.corpus, evaluations[0].kind
    if kind == 'transfer':
      place = evaluations[0].corpus
      # Another directory may have the same name.
      place += ' (transfer)' * (place == study.corpus)
    rows[method] = TableRow(
      evaluated_on=place,
      kind=kind,
      num_local_epochs=runs[0].num_local_epochs,
      method=method,
      num_rounds=_ascending(run.num_rounds for run in runs),
      num_seeds=_ascending(e.num_seeds for e in evaluations),
      cells=tuple(
        Cell(
          by_stage[c.stage][1].scores.get((c.fraction, c.measure)),
          _printed(study, number, *by_stage[c.stage], c),
        )
        if c.stage in by_stage
        else Cell(None, None)
        for c in columns
      ),
    )
  yield from rows.values()
  if len(baselines) != 1:
    return
  baseline = baselines[0]
  for method, row in rows.items():
    if method != baseline:
      sides = methods[method], methods[baseline]
      is_paired = [_is_paired(*sides, column) for column in columns]
      difference = _difference(row, rows[baseline], is_paired)
      if any(cell.ours for cell in difference.cells):
        yield difference


def _printed(
  study: Study, number: int, run: Run, evaluation: Evaluation, column: Column
) -> float | None:
  """Returns the paper's number beside one of ours."""
  # Runs of the other budget have fewer or more rounds than R, and fixed
  # compute of another reference another total than the paper's column.
  if (
    study.task is None
    or (number != 3 and run.num_rounds != study.budgets.num_rounds)
    or (
      column.stage == FIXED_COMPUTE
      and study.budgets.local_epochs != REFERENCE_LOCAL_EPOCHS
    )
  ):
    return None
  return fed_fish.find_value(
    table=number,
    corpus=study.task.corpus,
    num_local_epochs=run.num_local_epochs,
    method=fed_fish.method_of_paper(run),
    evaluated_on=fed_fish.evaluated_corpus(study.task, evaluation),
    **column._asdict(),
  )


def _is_paired(own: _ByStage, other: _ByStage, column: Column) -> bool:
  """Returns whether both scored the same clients after the same fine-tuning."""
  if column.stage not in own or column.stage not in other:
    return False
  a, b = (side[column.stage][1] for side in (own, other))
  ids, other_ids = (e.clients_at(column.fraction)['client_id'] for e in (a, b))
  return set(ids) == set(other_ids) and a.personalization == b.personalization


def _difference(
  row: TableRow, baseline: TableRow, is_paired: Sequence[bool]
) -> TableRow:
  """Returns the row of one method minus another's, over the seeds of both."""
  cells = []
  for a, b, paired in zip(row.cells, baseline.cells, is_paired, strict=True):
    others = dict(b.ours.seed_means) if paired and b.ours else {}
    ours = mean_over_seeds(
      {
        seeds: Interval(mean - others[seeds])
        for seeds, mean in (a.ours.seed_means if a.ours else ())
        if seeds in others
      }
    )
    is_printed = ours and None not in (a.paper, b.paper)
    cells.append(Cell(ours, a.paper - b.paper if is_printed else None))
  return dataclasses.replace(
    row,
    method=f'{row.method} − {baseline.method}',
    num_seeds=_ascending(len(c.ours.seed_means) for c in cells if c.ours),
    cells=tuple(cells),
    is_difference=True,
  )


def _ascending(values) -> tuple:
  return tuple(sorted(set(values)))
