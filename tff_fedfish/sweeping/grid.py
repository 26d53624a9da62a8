"""The grid of a sweep: which settings vary, alone or tied to each other."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Settings = dict[str, Any]
"""Values of settings by 'section.setting'."""

DATA_ORDER_SEEDS = (
  'seeds.cohort_seed',
  'seeds.shuffle_seed',
  'seeds.split_seed',
  'seeds.partition_seed',
)
"""What must be the same where two runs are compared: clients and their data."""

_SEEDS = 'seeds.'
# The budget sets it.
_NOT_IN_A_GRID = 'training.num_rounds'


@dataclasses.dataclass(frozen=True)
class Axis:
  """Settings that vary together; most often just one."""

  names: tuple[str, ...]
  """As 'section.setting'."""
  values: tuple[tuple[Any, ...], ...]
  """One tuple per point of the axis, as long as `names`."""

  @property
  def key(self) -> str:
    """The names as the grid writes them, separated by commas."""
    return ','.join(self.names)

  @property
  def is_of_seeds(self) -> bool:
    """Whether it repeats runs instead of comparing them."""
    return all(name.startswith(_SEEDS) for name in self.names)

  def points(self) -> list[Settings]:
    """Returns the settings of every point."""
    return [dict(zip(self.names, row, strict=True)) for row in self.values]


def parse_grid(
  grid: Any, problems: list[str], name: str = 'grid'
) -> tuple[Axis, ...]:
  """Turns 'section.setting' -> list of values into axes.

  A key that names several settings, separated by commas, ties them: its values
  are lists with one value for each.

  Args:
    grid: What the sweep file says.
    problems: Receives one clause for each problem.
    name: What `grid` is called in these.

  Returns:
    The axes: seeds first, so that a first repetition of all runs comes before
    a second one, then in the order of their names.
  """
  if not isinstance(grid, Mapping) or not grid:
    problems.append(
      f"`{name}` must name at least one setting, as {{'section.setting': "
      f'[value, ...]}}, found {grid!r}'
    )
    return ()
  axes = []
  for key, values in grid.items():
    axis = _parse_axis(key, values, problems, name)
    axes += [axis] if axis else []
  seen = set()
  for setting in (setting for axis in axes for setting in axis.names):
    if setting in seen:
      problems.append(f'`{name}` names {setting!r} twice; name it once')
    seen.add(setting)
  return tuple(sorted(axes, key=lambda axis: (not axis.is_of_seeds, axis.key)))


def require_fair(axes: Sequence[Axis], problems: list[str]) -> None:
  """Finds axes that would compare runs on different cohorts or data.

  Args:
    axes: Those of the grid.
    problems: Receives one clause for each problem.
  """
  for axis in axes:
    if _NOT_IN_A_GRID in axis.names:
      problems.append(
        f'`grid` must leave {_NOT_IN_A_GRID!r} to `budget`, found it in '
        f'{axis.key!r}'
      )
    seeds = [name for name in axis.names if name in DATA_ORDER_SEEDS]
    if seeds and not axis.is_of_seeds:
      problems.append(
        f'`grid` must not tie {seeds[0]!r} to settings that are compared, '
        f'found {axis.key!r}: they would be compared on different clients or '
        f'data; give {seeds[0]!r} a key of its own'
      )


def product(axes: Iterable[Axis]) -> list[Settings]:
  """Returns the settings of every point of a grid, the first axis slowest."""
  return [
    {name: value for point in points for name, value in point.items()}
    for points in itertools.product(*(axis.points() for axis in axes))
  ]


def to_json_dict(axes: Iterable[Axis]) -> dict[str, list[Any]]:
  """Returns axes as JSON values: lists of values, tied ones as lists."""
  return {
    axis.key: [
      list(row) if len(axis.names) > 1 else row[0] for row in axis.values
    ]
    for axis in axes
  }


def _parse_axis(key, values, problems, name):
  names = tuple(part.strip() for part in str(key).split(','))
  if any(part.count('.') != 1 or not all(part.split('.')) for part in names):
    problems.append(
      f"`{name}` must have keys such as 'section.setting', or several of "
      f'them separated by commas, found {key!r}'
    )
    return None
  if not isinstance(values, list | tuple) or not values:
    problems.append(
      f'`{name}` must give {key!r} a list of values, found {values!r}'
    )
    return None
  rows = []
  for value in values:
    row = value if len(names) > 1 else (value,)
    if not isinstance(row, list | tuple) or len(row) != len(names):
      problems.append(
        f'`{name}` must give {key!r} lists of {len(names)} values, one for '
        f'each setting, found {value!r}'
      )
      return None
    if not all(isinstance(v, str | int | float | None) for v in row):
      problems.append(
        f'`{name}` must give {key!r} numbers, strings, true, false or None, '
        f'found {value!r}'
      )
      return None
    if tuple(row) in rows:
      problems.append(f'`{name}` gives {key!r} the value {value!r} twice')
      return None
    rows.append(tuple(row))
  return Axis(names, tuple(rows))
