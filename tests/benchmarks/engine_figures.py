"""The figures of `make bench-engine`: spread, goals, and the table."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from tff_fedfish.printing import print_table

MET, SHORT = 'met', 'short'


class Goal(NamedTuple):
  """Goal of a figure; the bound itself is good enough."""

  bound: float
  is_at_least: bool = True

  def __str__(self) -> str:
    return f'{">=" if self.is_at_least else "<="} {self.bound:.4g}'

  def verdict(self, value: float) -> str:
    """Returns MET or SHORT."""
    if self.is_at_least:
      return MET if value >= self.bound else SHORT
    return MET if value <= self.bound else SHORT


@dataclasses.dataclass(frozen=True)
class Figure:
  """One line of the table."""

  name: str
  values: tuple[float, ...]
  """Values by turn; () where nothing was measured, and the note says why."""
  middle: float | None
  """Value that the goal is held against; None where nothing was measured."""
  unit: str = ''
  goal: Goal | None = None
  note: str = ''
  part: str = ''
  """The part that measured it."""

  @property
  def verdict(self) -> str:
    """MET, SHORT, or '' without a goal or a value."""
    if self.goal is None or self.middle is None:
      return ''
    return self.goal.verdict(self.middle)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the figure as JSON has it, with the values of all turns."""
    return dataclasses.asdict(self) | {
      'goal': str(self.goal) if self.goal else None,
      'verdict': self.verdict,
    }


def measured(
  name: str,
  values: Sequence[float],
  unit: str,
  goal: Goal | None = None,
  note: str = '',
) -> Figure:
  """Returns a figure whose middle is the median of its turns."""
  return Figure(
    name, tuple(values), statistics.median(values), unit, goal, note
  )


def ratio(
  name: str,
  numerators: Sequence[float],
  denominators: Sequence[float],
  goal: Goal | None = None,
  note: str = '',
) -> Figure:
  """Returns the ratio of two medians; its spread is that of single turns."""
  middle = statistics.median(numerators) / statistics.median(denominators)
  turns = tuple(
    over / under for over, under in zip(numerators, denominators, strict=True)
  )
  return Figure(name, turns, middle, 'x', goal, note)


def absent(reason: str) -> Figure:
  """Returns the line of a part that was not measured."""
  return Figure('all', (), None, note=f'not measured: {reason}')


def print_figures(figures: Sequence[Figure]) -> None:
  """Prints a line for each figure, and which goals are missed."""
  rows = []
  for figure in figures:
    spread = [''] * 3
    if figure.middle is not None:
      numbers = min(figure.values), figure.middle, max(figure.values)
      spread = [format_number(number) for number in numbers]
    goal = str(figure.goal or '')
    rows.append([figure.part, figure.name, *spread, figure.unit, goal])
    rows[-1] += [figure.verdict, figure.note]
  headings = ['part', 'figure', 'min', 'median', 'max', 'unit', 'goal', '']
  print()
  print_table(
    'Rounds: medians of turns',
    [*headings, 'note'],
    rows,
    text_columns=(0, 1, 5, 6, 7, 8),
  )
  verdicts = [figure.verdict for figure in figures]
  short = [figure.name for figure in figures if figure.verdict == SHORT]
  num_goals = len(verdicts) - verdicts.count('')
  line = f'{verdicts.count(MET)} of {num_goals} goals met'
  print(f'{line}; short: {", ".join(short)}' if short else line)


def format_number(value: float) -> str:
  """Returns three or more digits that matter: 1,234, 123, 12.3, 1.23."""
  size = abs(value)
  if size >= 100:
    return f'{value:,.0f}'
  return f'{value:.1f}' if size >= 10 else f'{value:.3f}'
