"""The figures of `make bench-engine`: spread, goals, and the table."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MET, SHORT = 'met', 'short'
# Below this the note would break the line on an ordinary terminal.
_NAME_WIDTH = 50


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

  part: str
  name: str
  values: tuple[float, ...]
  """Values by turn; () where nothing was measured, and the note says why."""
  middle: float | None
  """Value that the goal is held against; None where nothing was measured."""
  unit: str = ''
  goal: Goal | None = None
  note: str = ''

  @property
  def verdict(self) -> str:
    """MET, SHORT, or '' without a goal or a value."""
    if self.goal is None or self.middle is None:
      return ''
    return self.goal.verdict(self.middle)

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the figure as JSON has it, with the values of all turns."""
    return {
      'part': self.part,
      'name': self.name,
      'unit': self.unit,
      'min': min(self.values, default=None),
      'median': self.middle,
      'max': max(self.values, default=None),
      'values': list(self.values),
      'goal': str(self.goal) if self.goal else None,
      'verdict': self.verdict,
      'note': self.note,
    }


def measured(
  part: str,
  name: str,
  values: Sequence[float],
  unit: str,
  goal: Goal | None = None,
  note: str = '',
) -> Figure:
  """Returns a figure whose middle is the median of its turns.

  Args:
    part: The part that measured it.
    name: What it is.
    values: By turn, at least one.
    unit: Of the values.
    goal: What the median should be.
    note: A remark.
  """
  middle = statistics.median(values)
  return Figure(part, name, tuple(values), middle, unit, goal, note)


def ratio(
  part: str,
  name: str,
  numerators: Sequence[float],
  denominators: Sequence[float],
  goal: Goal | None = None,
  note: str = '',
) -> Figure:
  """Returns the ratio of two medians; its spread is that of single turns.

  Args:
    part: The part that measured it.
    name: What it is.
    numerators: By turn, at least one.
    denominators: Of the same turns.
    goal: What the ratio of medians should be.
    note: A remark.
  """
  middle = statistics.median(numerators) / statistics.median(denominators)
  turns = tuple(
    over / under for over, under in zip(numerators, denominators, strict=True)
  )
  return Figure(part, name, turns, middle, 'x', goal, note)


def absent(part: str, name: str, reason: str) -> Figure:
  """Returns the line of what was not measured."""
  return Figure(part, name, (), None, note=f'not measured: {reason}')


def format_table(figures: Sequence[Figure]) -> str:
  """Returns a line for each figure, below a heading."""
  lines = [
    f'{"part":16} {"figure":{_NAME_WIDTH}} {"min":>8} {"median":>8} {"max":>8} '
    f'{"unit":10} {"goal":>9} {"":5}  note'
  ]
  for figure in figures:
    spread = [''] * 3
    if figure.middle is not None:
      numbers = min(figure.values), figure.middle, max(figure.values)
      spread = [format_number(number) for number in numbers]
    lines.append(
      f'{figure.part:16} {figure.name:{_NAME_WIDTH}} {spread[0]:>8} '
      f'{spread[1]:>8} {spread[2]:>8} {figure.unit:10} '
      f'{str(figure.goal or ""):>9} {figure.verdict:5}  {figure.note}'
    )
  return '\n'.join(line.rstrip() for line in lines)


def format_number(value: float) -> str:
  """Returns three or more digits that matter: 1,234, 123, 12.3, 1.23."""
  size = abs(value)
  if size >= 100:
    return f'{value:,.0f}'
  return f'{value:.1f}' if size >= 10 else f'{value:.3f}'


def format_summary(figures: Sequence[Figure]) -> str:
  """Returns how many goals are met, and which are missed."""
  verdicts = [figure.verdict for figure in figures]
  short = [figure.name for figure in figures if figure.verdict == SHORT]
  goals = len(verdicts) - verdicts.count('')
  line = f'{verdicts.count(MET)} of {goals} goals met'
  return f'{line}; short: {", ".join(short)}' if short else line


def to_json_dict(
  figures: Sequence[Figure],
  machine: Mapping[str, Any],
  settings: Mapping[str, Any],
  problems: Sequence[str],
) -> dict[str, Any]:
  """Returns what `--output` holds.

  Args:
    figures: All that was measured.
    machine: What it was measured on.
    settings: What was asked for.
    problems: What went wrong, a missed goal excepted.
  """
  return {
    'machine': dict(machine),
    'settings': dict(settings),
    'figures': [figure.to_json_dict() for figure in figures],
    'problems': list(problems),
  }
