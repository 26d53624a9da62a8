"""The grid of a sweep: its axes, their points, and names of the points."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
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
  'algorithm.fisher_granularity': '',
  'algorithm.fisher_mix': 'q',
  'algorithm.fisher_cap': 'cap',
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
# File systems take 255 bytes, of which temporary names need some.
_MAX_NAME_CHARACTERS = 200


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


def parse_grid(grid: Any, name: str = 'grid') -> tuple[Axis, ...]:
  """Returns the axes of a dictionary 'section.setting' -> list of values.

  A key that names several settings, separated by commas, ties them: its values
  are lists with one value for each. Axes of seeds come first, so that a first
  repetition of all runs comes before a second one; the others are sorted.

  Raises:
    ValueError: If it is no grid; calls it `name`.
  """
  if not isinstance(grid, Mapping) or not grid:
    raise ValueError(
      f"`{name}` must name at least one setting, as {{'section.setting': "
      f'[value, ...]}}, found {grid!r}'
    )
  axes = [_parse_axis(key, values, name) for key, values in grid.items()]
  names = [setting for axis in axes for setting in axis.names]
  for setting in names:
    if names.count(setting) > 1:
      raise ValueError(f'`{name}` names {setting!r} twice; name it once')
  return tuple(sorted(axes, key=lambda axis: (not axis.is_of_seeds, axis.key)))


def fields_of(cls: type, value: Any) -> dict[str, dataclasses.Field]:
  """Returns the fields of a dataclass by name, for a dictionary of some.

  Raises:
    ValueError: If it is no dictionary, or has a key that is no field.
  """
  if not isinstance(value, Mapping):
    raise ValueError(f'must be a dictionary, found {value!r}')
  fields = {field.name: field for field in dataclasses.fields(cls)}
  if unknown := sorted({*map(str, value)} - {*fields}):
    raise ValueError(
      f'{unknown[0]!r} is unknown; known are {", ".join(fields)}'
    )
  return fields


def require_fair(axes: Sequence[Axis]) -> None:
  """Raises ValueError for an axis that makes a comparison unfair.

  Runs that are compared must have the same cohorts and data, and the rounds of
  their budget.
  """
  for axis in axes:
    if _NOT_IN_A_GRID in axis.names:
      raise ValueError(f'`grid` must leave {_NOT_IN_A_GRID!r} to `budget`')
    seeds = [name for name in axis.names if name in _DATA_SEEDS]
    if seeds and not axis.is_of_seeds:
      raise ValueError(
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


def run_name(
  axes: Sequence[Axis], settings: Settings, num_rounds: int | None = None
) -> str:
  """Returns the name of a run, such as 'fed_fish-E4-seed2'.

  It depends on the run's settings only, so it stays when values are added to
  the grid. A name above 200 characters ends in a hash of the whole.

  Args:
    axes: Axes of the grid.
    settings: The run's. Axes without a value are left out.
    num_rounds: Rounds of the run. None: they do not tell runs apart.
  """
  axes = [axis for axis in axes if axis.names[0] in settings]
  parts = [_axis_label(axis, settings) for axis in axes if not axis.is_of_seeds]
  parts += [] if num_rounds is None else [f'R{num_rounds}']
  parts += [_axis_label(axis, settings) for axis in axes if axis.is_of_seeds]
  return _shortened('-'.join(parts), _MAX_NAME_CHARACTERS)


def _parse_axis(key: Any, values: Any, grid_name: str) -> Axis:
  names = tuple(part.strip() for part in str(key).split(','))
  if any(part.count('.') != 1 or not all(part.split('.')) for part in names):
    raise ValueError(
      f"`{grid_name}` must have keys such as 'section.setting', or several of "
      f'them separated by commas, found {key!r}'
    )
  must = f'`{grid_name}` must give {key!r}'
  if not isinstance(values, list | tuple) or not values:
    raise ValueError(f'{must} a list of values, found {values!r}')
  rows = []
  for value in values:
    row = value if len(names) > 1 else (value,)
    if not isinstance(row, list | tuple) or len(row) != len(names):
      raise ValueError(
        f'{must} lists of {len(names)} values, one for each setting, found '
        f'{value!r}'
      )
    if not all(isinstance(v, str | int | float | None) for v in row):
      raise ValueError(
        f'{must} numbers, strings, true, false or None, found {value!r}'
      )
    if tuple(row) in rows:
      raise ValueError(f'{must} different values, found {value!r} twice')
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
  if not text or text != value:
    # What was replaced or left out may be all that tells two values apart.
    return f'{text[:_MAX_VALUE_CHARACTERS]}_{_hash(value)}'
  return _shortened(text, _MAX_VALUE_CHARACTERS)


def _shortened(text: str, length: int) -> str:
  return text if len(text) <= length else f'{text[:length]}_{_hash(text)}'


def _hash(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:6]
