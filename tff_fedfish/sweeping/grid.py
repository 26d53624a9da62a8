"""The grid of a sweep: its axes, their points, and names of the points."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Settings = dict[str, Any]
"""Values of settings by 'section.setting'."""

_SEEDS = 'seeds.'
# Runs that are compared must share their clients and data.
_DATA_SEEDS = (
  'seeds.cohort_seed',
  'seeds.shuffle_seed',
  'seeds.split_seed',
  'seeds.partition_seed',
)
# The budget sets it.
_NOT_IN_A_GRID = 'training.num_rounds'
# In names of runs, where the value says enough or a letter does.
_LABELS = {
  'algorithm.name': '',
  'algorithm.fisher_estimator': '',
  'algorithm.fisher_reduction': '',
  'algorithm.fisher_normalization': 'normalization',
  'algorithm.client_weighting': '',
  'algorithm.relative_floor': 'floor',
  'algorithm.fisher_power': 'p',
  'algorithm.plain_mean_fraction': 's',
  'algorithm.plain_mean_tensors': '',
  'model.preset': '',
  'server.optimizer': '',
  'client_work.optimizer': 'client',
  'client_work.num_local_epochs': 'E',
  'client_work.learning_rate': 'client_lr',
  'client_work.max_delta_norm': 'delta_norm',
  'server.learning_rate': 'server_lr',
  'cohorts.cohort_size': 'cohort_size',
  'seeds.model_seed': 'seed',
}
_MAX_VALUE_CHARACTERS = 40


@dataclasses.dataclass(frozen=True)
class Axis:
  """Settings that vary together; most often only one."""

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


def parse_grid(
  grid: Any, problems: list[str], name: str = 'grid'
) -> tuple[Axis, ...]:
  """Returns the axes of a dictionary 'section.setting' -> list of values.

  A key that names several settings, separated by commas, ties them: its values
  are lists with one value for each. Axes of seeds come first, so that a first
  repetition of all runs comes before a second one; the others are sorted.
  Adds a clause to `problems`, which calls the grid `name`, for each problem.
  """
  if not isinstance(grid, Mapping) or not grid:
    problems.append(
      f"`{name}` must name at least one setting, as {{'section.setting': "
      f'[value, ...]}}, found {grid!r}'
    )
    return ()
  axes, seen = [], set()
  for key, values in grid.items():
    try:
      axes.append(_parse_axis(key, values))
    except ValueError as error:
      problems.append(f'`{name}` {error}')
  for setting in (setting for axis in axes for setting in axis.names):
    if setting in seen:
      problems.append(f'`{name}` names {setting!r} twice; name it once')
    seen.add(setting)
  return tuple(sorted(axes, key=lambda axis: (not axis.is_of_seeds, axis.key)))


def require_fair(axes: Sequence[Axis], problems: list[str]) -> None:
  """Adds to `problems` each axis that makes a comparison unfair.

  Runs that are compared must have the same cohorts and data, and the rounds of
  their budget.
  """
  for axis in axes:
    if _NOT_IN_A_GRID in axis.names:
      problems.append(
        f'`grid` must leave {_NOT_IN_A_GRID!r} to `budget`, found it in '
        f'{axis.key!r}'
      )
    seeds = [name for name in axis.names if name in _DATA_SEEDS]
    if seeds and not axis.is_of_seeds:
      problems.append(
        f'`grid` must not tie {seeds[0]!r} to settings that are compared, '
        f'found {axis.key!r}: they would be compared on different clients or '
        f'data; give {seeds[0]!r} a key of its own'
      )


def product(axes: Sequence[Axis]) -> list[Settings]:
  """Returns the settings of every point of a grid, the first axis slowest."""
  return [
    {
      name: value
      for axis, row in zip(axes, rows, strict=True)
      for name, value in zip(axis.names, row, strict=True)
    }
    for rows in itertools.product(*(axis.values for axis in axes))
  ]


def to_json_dict(axes: Iterable[Axis]) -> dict[str, list[Any]]:
  """Returns axes as JSON values: lists of values, tied ones as lists."""
  return {
    axis.key: [
      list(row) if len(axis.names) > 1 else row[0] for row in axis.values
    ]
    for axis in axes
  }


def run_name(
  axes: Sequence[Axis], settings: Settings, num_rounds: int | None = None
) -> str:
  """Returns the name of a run, such as 'fed_fish-E4-seed2'.

  It depends on the run's settings only, so it stays when values are added to
  the grid. Axes without values are left out, and rounds that do not tell runs
  apart are None.
  """
  axes = [axis for axis in axes if axis.names[0] in settings]
  parts = [_axis_label(axis, settings) for axis in axes if not axis.is_of_seeds]
  parts += [] if num_rounds is None else [f'R{num_rounds}']
  parts += [_axis_label(axis, settings) for axis in axes if axis.is_of_seeds]
  return '-'.join(parts)


def _parse_axis(key, values):
  """Returns one axis; a ValueError says how it is wrong."""
  names = tuple(part.strip() for part in str(key).split(','))
  if any(part.count('.') != 1 or not all(part.split('.')) for part in names):
    raise ValueError(
      "must have keys such as 'section.setting', or several of them separated "
      f'by commas, found {key!r}'
    )
  if not isinstance(values, list | tuple) or not values:
    raise ValueError(f'must give {key!r} a list of values, found {values!r}')
  rows = []
  for value in values:
    row = value if len(names) > 1 else (value,)
    if not isinstance(row, list | tuple) or len(row) != len(names):
      raise ValueError(
        f'must give {key!r} lists of {len(names)} values, one for each '
        f'setting, found {value!r}'
      )
    if not all(isinstance(v, str | int | float | None) for v in row):
      raise ValueError(
        f'must give {key!r} numbers, strings, true, false or None, found '
        f'{value!r}'
      )
    if tuple(row) in rows:
      raise ValueError(f'gives {key!r} the value {value!r} twice')
    rows.append(tuple(row))
  return Axis(names, tuple(rows))


def _axis_label(axis, settings):
  first, *others = axis.names
  if axis.is_of_seeds:
    # Tied seeds are most often equal: one number then says it all.
    others = [name for name in others if settings[name] != settings[first]]
  return '-'.join(_label(name, settings[name]) for name in [first, *others])


def _label(name: str, value: Any) -> str:
  # Seeds and a method's own settings need no section before them.
  full = name.removeprefix('algorithm.').removeprefix(_SEEDS).replace('.', '_')
  label, text = _LABELS.get(name, full), _value_text(value)
  between = '_' if label and not text[0].isdigit() else ''
  return f'{label}{between}{text}'


def _value_text(value):
  if isinstance(value, bool) or value is None:
    return str(value).lower()
  if not isinstance(value, str):
    return repr(value)
  # The last part of a path says most.
  text = re.sub(r'[^A-Za-z0-9_]+', '_', value.rstrip('/').rpartition('/')[2])
  text = text[:_MAX_VALUE_CHARACTERS]
  if text and text == value:
    return text
  # What was cut off may be all that tells two values apart.
  return f'{text}_{hashlib.sha256(value.encode()).hexdigest()[:6]}'
