"""The search for learning rates, which never sees a client of the evaluations.

Every client has a fixed place in [0, 1) (`data/client_splits.py`), and those
below f = `client_splits.held_out_fraction` are held out. A search run holds out
those below f + v, v = `validation_fraction`. Clients between f and f + v are
the validation clients: the search does not train on them and chooses by them
alone. Those below f, on which the runs of the sweep are evaluated, it neither
trains on nor chooses by. In the runs of the sweep validation clients take part
in training like all others that are not held out. Where a corpus holds clients
out itself, f is 0: a search run leaves those aside altogether.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import grid, names
from tff_fedfish.sweeping.grid import Axis, Settings
from tff_fedfish.sweeping.selection import METRICS

_REQUIRED = ('settings', 'num_rounds')
_OPTIONAL = ('metric', 'per', 'validation_fraction', 'num_clients')
# Other values of these hold out other clients, or other data.
_DECIDE_HELD_OUT = (
  'client_splits.held_out_fraction',
  'seeds.split_seed',
  'seeds.partition_seed',
  'partition.',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRateSearch:
  """What `learning_rate_search` says."""

  axes: tuple[Axis, ...]
  """The settings that are searched, and their values."""
  per: tuple[Axis, ...]
  """Axes of the grid; each of their points has a search of its own."""
  num_rounds: int
  """Of every search run, >= 1."""
  metric: str
  """'held-out loss' or 'accuracy', of the validation clients."""
  validation_fraction: float
  """v: share of all clients that are set aside to choose by."""
  num_clients: int
  """Validation clients to score, about so many; 0: all."""

  def to_json_dict(self) -> dict[str, Any]:
    """Returns what fixes the search, apart from the points of `per`."""
    return {
      'settings': grid.to_json_dict(self.axes),
      'num_rounds': self.num_rounds,
      'metric': self.metric,
      'per': [axis.key for axis in self.per],
      'validation_fraction': self.validation_fraction,
      'num_clients': self.num_clients,
    }

  def groups(self) -> list[Settings]:
    """Returns the settings of every search: one {} where there is but one."""
    return grid.product(self.per)

  def group_of(self, settings: Settings) -> Settings:
    """Returns the search that a run of the grid belongs to."""
    return {
      name: settings[name]
      for axis in self.per
      for name in axis.names
      if name in settings
    }

  def rates(self) -> list[Settings]:
    """Returns the settings that a search chooses from."""
    return grid.product(self.axes)

  def run_name(self, group: Settings, rates: Settings) -> str:
    """Returns the name of a search run."""
    return names.run_name((*self.per, *self.axes), group | rates)

  def run_settings(self, base: TrainConfig) -> Settings:
    """Returns what tells a search run from a run of the sweep.

    Args:
      base: The config with the settings of the search's group.

    Raises:
      UserError: If f + v leaves nobody to train on.
    """
    held_out_fraction = held_out_share(base)
    together = held_out_fraction + self.validation_fraction
    if not together < 1:
      raise UserError(
        '`learning_rate_search` sets `validation_fraction` '
        f'{self.validation_fraction} of the clients aside besides the '
        f'`client_splits.held_out_fraction` of {held_out_fraction}, and both '
        'together must be below 1. Lower one.'
      )
    return {
      'training.num_rounds': self.num_rounds,
      'client_splits.held_out_fraction': together,
      # Its sample would hold clients of the evaluations.
      'evaluation.num_clients': 0,
    }

  def max_clients(self, held_out_fraction: float) -> int | None:
    """Returns how many clients below f + v to score for `num_clients`."""
    if not self.num_clients:
      return None
    share = self.validation_fraction / (
      held_out_fraction + self.validation_fraction
    )
    # Rounded: 24 / 0.5 may come out a little above 48.
    return math.ceil(round(self.num_clients / share, 6))


def held_out_share(config: TrainConfig) -> float:
  """Returns f; 0 where the corpus says itself who is held out."""
  return config.client_splits.held_out_fraction or 0.0


def parse_search(
  value: Any, axes: Sequence[Axis], base: TrainConfig, problems: list[str]
) -> LearningRateSearch | None:
  """Turns what a sweep file says under `learning_rate_search` into a search.

  Args:
    value: A dictionary, or None.
    axes: Those of the grid.
    base: The base config, whose `evaluation.num_clients` is the default of
      `num_clients`.
    problems: Receives one clause for each problem.
  """
  if value is None:
    return None
  name = '`learning_rate_search`'
  if not isinstance(value, Mapping):
    problems.append(f'{name} must be a dictionary, found {value!r}')
    return None
  known = (*_REQUIRED, *_OPTIONAL)
  found = [
    f'{key!r} is unknown; known are {", ".join(known)}'
    for key in value
    if key not in known
  ]
  found += [f'{key!r} is required' for key in _REQUIRED if key not in value]
  search_axes = ()
  if 'settings' in value:
    search_axes = grid.parse_grid(value['settings'], found, 'settings')
  metric = value.get('metric', 'held-out loss')
  if metric not in METRICS:
    found.append(
      f'`metric` must be {" or ".join(map(repr, METRICS))}, found {metric!r}'
    )
  numbers = {
    'num_rounds': (value.get('num_rounds', 1), 1),
    'num_clients': (value.get('num_clients', base.evaluation.num_clients), 0),
  }
  for key, (number, least) in numbers.items():
    if type(number) is not int or number < least:
      found.append(
        f'`{key}` must be an int of at least {least}, found {number!r}'
      )
  fraction = value.get('validation_fraction', 0.1)
  if not isinstance(fraction, float) or not 0 < fraction < 1:
    found.append(
      '`validation_fraction` must be a number between 0 and 1, found '
      f'{fraction!r}'
    )
  per = _parse_per(value.get('per', ()), axes, found)
  _require_apart(search_axes, per, axes, found)
  problems += [f'{name}: {problem}' for problem in found]
  if found or not search_axes:
    return None
  return LearningRateSearch(
    axes=search_axes,
    per=per,
    num_rounds=value['num_rounds'],
    metric=metric,
    validation_fraction=fraction,
    num_clients=numbers['num_clients'][0],
  )


def _parse_per(value, axes, problems):
  """Returns the axes of the grid that `per` names."""
  if not isinstance(value, list | tuple):
    problems.append(f'`per` must be a list of settings, found {value!r}')
    return ()
  chosen = []
  for key in value:
    found = [axis for axis in axes if key == axis.key or key in axis.names]
    if not found:
      keys = ', '.join(repr(axis.key) for axis in axes)
      problems.append(f'`per` must name keys of `grid` ({keys}), found {key!r}')
    chosen += found
  return tuple(axis for axis in axes if axis in chosen)


def _require_apart(search_axes, per, axes, problems):
  """Finds settings that the grid and the search both set, or confuse."""
  searched = {name for axis in search_axes for name in axis.names}
  for axis in axes:
    both = [name for name in axis.names if name in searched]
    if both:
      problems.append(f'{both[0]!r} must not be in `grid`, too')
    splits = [name for name in axis.names if _decides_held_out(name)]
    if splits and axis not in per:
      problems.append(
        f'`per` must hold {splits[0]!r}, which `grid` varies: a search for '
        'all its values would see what some of the runs hold out'
      )
  for name in sorted(searched):
    if name == 'training.num_rounds' or _decides_held_out(name):
      problems.append(f'`settings` must not search {name!r}')


def _decides_held_out(name: str) -> bool:
  return name.startswith(_DECIDE_HELD_OUT)
