"""Reads a sweep file: a config file that also has a `get_sweep()`."""

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.config import given, load
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.evaluations import EvaluationRequest, parse_evaluation
from tff_fedfish.sweeping.grid import Axis, Settings
from tff_fedfish.sweeping.search import LearningRateSearch, parse_search

_BUDGETS = ('fixed_rounds', 'fixed_compute')
_METHOD = 'algorithm.name'
_LOCAL_EPOCHS = 'client_work.num_local_epochs'
_ADVICE = 'Correct the file; configs/debian_sweep.py is an example.'
KEYS = (
  *('grid', 'budget', 'reference_local_epochs', 'learning_rate_search'),
  'evaluate',
)
"""Keys of `get_sweep()`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFile:
  """Contents of a sweep file, checked."""

  path: str
  """As typed."""
  definition: Mapping[str, Any]
  """The dictionary that `get_sweep()` returned."""
  values: given.Given
  """Settings of the base and the overrides, of any method of the grid."""
  base: TrainConfig
  """Config that `get_config()` and the overrides give."""
  axes: tuple[Axis, ...]
  """The grid."""
  budgets: tuple[str, ...]
  """Budgets of every point of the grid; see `rounds_by_budget`."""
  reference_local_epochs: int
  """Local epochs with which the base's rounds cost the fixed compute."""
  search: LearningRateSearch | None
  evaluations: tuple[EvaluationRequest, ...]
  """Evaluations after every run's training."""

  def config(self, settings: Settings, run_name: str) -> TrainConfig:
    """Returns the base config with other values of some settings.

    Raises:
      ConfigError: Naming the run and all unknown and wrong settings.
    """
    source = repr(f'{self.path}, run {run_name}')
    return load.build_config(self.values.with_settings(settings, source))[0]

  def without_unread(self, settings: Settings) -> Settings:
    """Returns the settings of a run without those its method does not read.

    Settings that are tied to others stay.
    """
    method = registry.find_or_none(
      settings.get(_METHOD, self.base.algorithm.name)
    )
    axes = (*self.axes, *(self.search.settings if self.search else ()))
    tied = {n for axis in axes if len(axis.names) > 1 for n in axis.names}
    return {
      name: value
      for name, value in settings.items()
      if name in tied or method is None or not is_unread(name, method)
    }

  def rounds_by_budget(self, point: Settings) -> dict[int, tuple[str, ...]]:
    """Returns the rounds of a point of the grid, with the budgets they satisfy.

    'fixed_rounds': R, the base's rounds, whatever the local epochs E.
    'fixed_compute': R E_reference / E rounds, so that every run takes as many
    local steps. Where both coincide, one run serves both.

    Raises:
      UserError: If R E_reference is no multiple of E, or runs may stop early.
    """
    base_rounds, budgets_of = self.base.training.num_rounds, {}
    epochs = point.get(_LOCAL_EPOCHS, self.base.client_work.num_local_epochs)
    # The config says what is wrong with other epochs.
    is_count = type(epochs) is int and epochs > 0
    patience = point.get('training.patience', self.base.training.patience)
    if patience is not None and 'fixed_compute' in self.budgets:
      raise UserError(
        "`budget` 'fixed_compute' needs `training.patience` None, as runs that "
        f'stop early differ in compute, found {patience}.'
      )
    for budget in self.budgets:
      num_rounds, rest = base_rounds, 0
      total = base_rounds * self.reference_local_epochs
      if budget == 'fixed_compute' and is_count:
        num_rounds, rest = divmod(total, epochs)
      if rest:
        raise UserError(
          "`budget` 'fixed_compute' needs rounds x local epochs of the base, "
          f'{base_rounds} x {self.reference_local_epochs} = {total}, to be a '
          f'multiple of every `{_LOCAL_EPOCHS}`, but {epochs} does not divide '
          f'{total}. Choose another `training.num_rounds`.'
        )
      budgets_of[num_rounds] = (*budgets_of.get(num_rounds, ()), budget)
    return budgets_of


def read_sweep_file(
  path: str | os.PathLike, overrides: Sequence[str] = ()
) -> SweepFile:
  """Reads and checks a sweep file.

  Args:
    path: A Python file whose `get_config()` returns a config as for `fedfish
      train`, and `get_sweep()` a dictionary. It is run.
    overrides: Arguments as typed: '--config.section.setting=value'.

  Raises:
    UserError: If the file cannot be used, an override is none or sets what
      the sweep varies, or `get_sweep()` returns anything wrong.
  """
  values = given.read_values(path, overrides)
  sweep = given.call_in_file(path, 'get_sweep', _ADVICE)
  try:
    parsed = parse_definition(sweep)
  except ValueError as error:
    raise UserError(f'Invalid sweep {str(path)!r}: {error}.') from error
  axes, search = parsed['grid'], parsed['learning_rate_search']
  varied = {name: 'grid' for axis in axes for name in axis.names}
  for axis in search.settings if search else ():
    varied |= dict.fromkeys(axis.names, 'learning_rate_search')
  for name in sorted(values.overridden & varied.keys()):
    raise UserError(
      f'`--config.{name}` must be left out: `{varied[name]}` in {str(path)!r} '
      'varies it.'
    )
  for name in values.notes.keys() - varied.keys():
    print(f'fedfish: note: {values.notes[name]}', file=sys.stderr)
  # The base may hold settings of any method of the grid.
  for point in grid.product(axes):
    registry.find_or_none(str(point.get(_METHOD, '')))
  base = load.build_config(values)[0]
  return SweepFile(
    path=str(path),
    definition=sweep,
    values=values,
    base=base,
    axes=axes,
    budgets=parsed['budget'],
    reference_local_epochs=parsed['reference_local_epochs']
    or base.client_work.num_local_epochs,
    search=search,
    evaluations=parsed['evaluate'],
  )


def is_unread(setting: str, method: Method) -> bool:
  """Returns whether only methods other than this one read a setting."""
  return not registry.reads(method, setting) and bool(registry.readers(setting))


def parse_definition(sweep: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what `get_sweep()` returned, checked, by key.

  Raises:
    ValueError: Naming what is wrong with it.
  """
  for name in sorted({*map(str, sweep)} - {*KEYS}):
    raise ValueError(f'`{name}` is unknown; known are {", ".join(KEYS)}')
  axes = grid.parse_grid(sweep.get('grid'))
  grid.require_fair(axes)
  budget = sweep.get('budget', 'fixed_rounds')
  budgets = [budget] if isinstance(budget, str) else budget
  is_list = isinstance(budgets, list | tuple) and len(budgets) > 0
  if not is_list or not all(name in _BUDGETS for name in budgets):
    raise ValueError(
      f'`budget` must be {" or ".join(map(repr, _BUDGETS))}, or a list of '
      f'them, found {budget!r}'
    )
  epochs = sweep.get('reference_local_epochs')
  if epochs is not None and (type(epochs) is not int or epochs < 1):
    raise ValueError(
      f'`reference_local_epochs` must be an int of at least 1, found {epochs!r}'
    )
  entries, requests = sweep.get('evaluate', []), []
  if not isinstance(entries, list | tuple):
    raise ValueError(
      f'`evaluate` must be a list of evaluations, found {entries!r}'
    )
  for number, entry in enumerate(entries, start=1):
    try:
      requests.append(parse_evaluation(entry))
    except ValueError as error:
      raise ValueError(f'`evaluate`, number {number}: {error}') from error
  return {
    'grid': axes,
    'budget': tuple(name for name in _BUDGETS if name in budgets),
    'reference_local_epochs': epochs,
    'learning_rate_search': parse_search(
      sweep.get('learning_rate_search'), axes
    ),
    'evaluate': tuple(requests),
  }
