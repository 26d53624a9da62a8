"""Reads a sweep file: a config file that also has a `get_sweep()`."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config import files as config_files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.evaluations import parse_evaluations
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.learning_rate_search import parse_search

BUDGETS = ('fixed_rounds', 'fixed_compute')
"""How long runs last; see `sweep_runs.rounds_by_budget`."""

_METHOD = 'algorithm.name'
_ADVICE = 'Correct the file; configs/debian_sweep.py is an example.'
_KEYS = (
  'budget',
  'evaluate',
  'grid',
  'learning_rate_search',
  'reference_local_epochs',
)


class SweepFile:
  """A sweep file as it was when it was read.

  Attributes:
    path: Path as typed.
    base: Config that `get_config()` and the overrides give.
    axes: The grid.
    budgets: Budgets of every point of the grid, from `BUDGETS`.
    reference_local_epochs: Local epochs with which the base's rounds cost the
      fixed compute.
    search: The search for learning rates, or None.
    evaluations: Requests for evaluations after every run's training.
  """

  def __init__(self, path: str | os.PathLike, overrides: Sequence[str] = ()):
    """Reads and checks a sweep file.

    Args:
      path: A Python file whose `get_config()` returns a config as for
        `fedfish train`, and `get_sweep()` a ConfigDict of values. It is run.
      overrides: Arguments as typed: '--config.section.setting=value'.

    Raises:
      UserError: If the file cannot be used, an override is none or sets what
        the sweep varies, or `get_sweep()` returns anything wrong.
    """
    self.path = str(path)
    self._values = config_loading.read_values(path, overrides)
    sweep = _plain(
      config_files.call_in_file(pathlib.Path(path), 'get_sweep', _ADVICE)
    )
    problems = [
      f'`{name}` is unknown; known are {", ".join(_KEYS)}'
      for name in sorted(map(str, sweep))
      if name not in _KEYS
    ]
    self.axes = grid.parse_grid(sweep.get('grid'), problems)
    grid.require_fair(self.axes, problems)
    self.base = self._build_base(problems)
    self.reference_local_epochs = sweep.get(
      'reference_local_epochs', self.base.client_work.num_local_epochs
    )
    if (
      type(self.reference_local_epochs) is not int
      or self.reference_local_epochs < 1
    ):
      problems.append(
        f'`reference_local_epochs` must be an int of at least 1, found '
        f'{self.reference_local_epochs!r}'
      )
    self.budgets = parse_budgets(sweep.get('budget', BUDGETS[0]), problems)
    self.search = parse_search(
      sweep.get('learning_rate_search'), self.axes, self.base, problems
    )
    self.evaluations = parse_evaluations(sweep.get('evaluate', ()), problems)
    if problems:
      raise self._error(problems)
    # The key of `get_sweep()` that varies each setting.
    self._varied = {n: 'grid' for axis in self.axes for n in axis.names}
    for axis in self.search.axes if self.search else ():
      self._varied |= dict.fromkeys(axis.names, 'learning_rate_search')
    for name in sorted(self._values.overridden & self._varied.keys()):
      raise UserError(
        f'`--config.{name}` must be left out: `{self._varied[name]}` in '
        f'{self.path!r} varies it.'
      )

  def to_json_dict(self) -> dict[str, Any]:
    """Returns everything but the base config as sweep.json keeps it."""
    return {
      'grid': grid.to_json_dict(self.axes),
      'budget': list(self.budgets),
      'reference_local_epochs': self.reference_local_epochs,
      'learning_rate_search': self.search and self.search.to_json_dict(),
      'evaluate': [request.to_json_dict() for request in self.evaluations],
    }

  def config(self, settings: Settings, name: str) -> TrainConfig:
    """Returns the base config with other values of some settings.

    Args:
      settings: The values, by 'section.setting'.
      name: The run's name, for errors.

    Raises:
      ConfigError: Naming all unknown and wrong settings.
    """
    sections = {
      section: dict(values) if isinstance(values, Mapping) else values
      for section, values in self._values.sections.items()
    }
    for setting, value in settings.items():
      section, leaf = setting.split('.')
      sections.setdefault(section, {})[leaf] = value
    values = dataclasses.replace(
      self._values, sections=sections, source=repr(f'{self.path}, run {name}')
    )
    return config_loading.build_config(values)[0]

  def without_unread(self, settings: Settings) -> Settings:
    """Returns the settings without those axes that the method does not read.

    Args:
      settings: A point of the grid, or of a search's group, with or without
        the rates that it tries. Settings that are tied to others stay.
    """
    method = registry.find_or_none(
      settings.get(_METHOD, self.base.algorithm.name)
    )
    axes = (*self.axes, *(self.search.axes if self.search else ()))
    tied = {n for axis in axes if len(axis.names) > 1 for n in axis.names}
    return {
      name: value
      for name, value in settings.items()
      if name in tied or method is None or not _is_unread(name, method)
    }

  def require_read(
    self, configs: Iterable[TrainConfig], *, of_search: bool = False
  ) -> list[str]:
    """Checks that some run reads each override and each varied setting.

    Args:
      configs: Configs of the runs of the grid, or of the search.
      of_search: Whether they are those of the search; then only the settings
        that are searched are checked.

    Returns:
      Settings of the base that no run reads, as 'section.setting'.

    Raises:
      UserError: Naming the first setting that no run reads.
    """
    methods = {config.algorithm.name: config.method for config in configs}
    names = {
      name
      for name, key in self._varied.items()
      if not of_search or key == 'learning_rate_search'
    }
    if not of_search:
      section = AlgorithmConfig.section
      of_base = self._values.sections.get(section, ())
      names |= {f'{section}.{name}' for name in of_base}
      names |= self._values.overridden
    unread = [
      name
      for name in sorted(names)
      if all(_is_unread(name, method) for method in methods.values())
    ]
    for name in unread:
      if name in self._varied or name in self._values.overridden:
        place = f'`--config.{name}`'
        if name in self._varied:
          place = f'`{self._varied[name]}` in {self.path!r}'
        readers = ', '.join(registry.readers(name.partition('.')[2]))
        raise UserError(
          f'{place} sets {name!r}, which no run of the '
          f'{"search" if of_search else "sweep"} reads: their methods are '
          f'{", ".join(methods)}, and it is read by {readers}. Leave it out.'
        )
    return unread

  def _build_base(self, problems: list[str]) -> TrainConfig:
    """Returns the base, which may hold settings of any method of the grid.

    Raises:
      UserError: If it is wrong; naming `problems` of the grid if there are any:
        without its methods their settings look unknown.
    """
    for axis in self.axes:
      for row in axis.values if _METHOD in axis.names else ():
        registry.find_or_none(str(row[axis.names.index(_METHOD)]))
    try:
      return config_loading.build_config(self._values)[0]
    except UserError:
      if problems:
        raise self._error(problems) from None
      raise

  def _error(self, problems: list[str]) -> UserError:
    return UserError(f'Invalid sweep {self.path!r}: {"; ".join(problems)}.')


def parse_budgets(value: Any, problems: list[str]) -> tuple[str, ...]:
  """Returns one or a list of budgets as a tuple, in the order of `BUDGETS`.

  Adds a clause to `problems` if it is neither.
  """
  names = [value] if isinstance(value, str) else value
  if (
    not isinstance(names, list | tuple)
    or not names
    or any(name not in BUDGETS for name in names)
  ):
    problems.append(
      f'`budget` must be {" or ".join(map(repr, BUDGETS))}, or a list of '
      f'them, found {value!r}'
    )
    return ()
  return tuple(name for name in BUDGETS if name in names)


def _is_unread(setting: str, method: Method) -> bool:
  """Says whether only methods other than this one read a setting."""
  section, _, leaf = setting.partition('.')
  return (
    section == AlgorithmConfig.section
    and leaf not in registry.settings_of(method)
    and bool(registry.readers(leaf))
  )


def _plain(value: Any) -> Any:
  """Returns `value` with every ConfigDict in it as a dictionary."""
  if hasattr(value, 'to_dict'):
    value = value.to_dict()
  if isinstance(value, Mapping):
    return {key: _plain(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(inner) for inner in value]
  return value
