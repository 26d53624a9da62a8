"""Rows of the paper's tables: our number, its spread over seeds, and theirs."""

import dataclasses
from collections.abc import Sequence

from tff_fedfish.reporting.evaluations import Interval
from tff_fedfish.reporting.words import Words


@dataclasses.dataclass(frozen=True)
class Column:
  """Meaning of a number.

  Attributes:
    stage: Of `paper_results.Result`.
    fraction: Share of the client's data that was personalized on.
    measure: 'accuracy' or 'loss'.
  """

  stage: str
  fraction: float
  measure: str


@dataclasses.dataclass(frozen=True)
class Cell:
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


def difference(
  row: TableRow, baseline: TableRow, is_paired: Sequence[bool]
) -> TableRow:
  """Returns the row of one method minus another, ours and the paper's.

  Args:
    row: Of the one.
    baseline: Of the other, with the same columns.
    is_paired: For each column, whether the same clients were scored in the same
      way.

  Returns:
    Differences of the means over the seeds that both have; none, of ours and
    the paper's, where they share no seed or are not paired.
  """
  ours = [
    _interval_difference(a.ours, b.ours) if paired else None
    for a, b, paired in zip(row.cells, baseline.cells, is_paired, strict=True)
  ]
  cells = tuple(
    Cell(
      found,
      None
      if found is None or a.paper is None or b.paper is None
      else a.paper - b.paper,
    )
    for found, a, b in zip(ours, row.cells, baseline.cells, strict=True)
  )
  seeds = {len(cell.ours.seed_means) or 1 for cell in cells if cell.ours}
  return dataclasses.replace(
    row,
    method=f'{row.method} − {baseline.method}',
    num_seeds=tuple(sorted(seeds)),
    cells=cells,
    is_difference=True,
  )


def _interval_difference(a, b) -> Interval | None:
  """Returns a - b over the seeds that both have; None without such seeds."""
  if a is None or b is None:
    return None
  others = dict(b.seed_means)
  means = tuple(
    (seeds, mean - others[seeds])
    for seeds, mean in a.seed_means
    if seeds in others
  )
  if not means:
    return None
  return Interval(sum(m for _, m in means) / len(means), seed_means=means)


def show(value: float, measure: str, is_difference: bool = False) -> str:
  """Returns a number as text: accuracies in percent, losses in nats.

  Args:
    value: The number.
    measure: 'accuracy' or 'loss'.
    is_difference: Whether to show its sign.
  """
  sign = '+' if is_difference else ''
  text = (
    f'{100 * value:{sign}.2f}'
    if measure == 'accuracy'
    else f'{value:{sign}.3f}'
  )
  return text.replace('-', '−')


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
  groups: dict[str, int] = {}
  names = []
  for column in columns:
    group = 'Global'
    if column.fraction > 0:
      group = f'Personalized on {100 * column.fraction:g} %'
    if is_by_stage:
      group = f'{group}: {words.accuracy_label}'
    groups[group] = groups.get(group, 0) + 1
    # The unit of the loss stands above the tables.
    label = 'Loss' if column.measure == 'loss' else 'Accuracy (%)'
    names.append(column.stage if is_by_stage else label)
  return list(groups.items()), names
