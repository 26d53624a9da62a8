"""Reads a sweep file: a config file with `get_sweep()` besides."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import AlgorithmConfig, Method
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.sweep_config import SweepConfig, parse_sweep
from tff_fedfish.training import config_files, config_loading
from tff_fedfish.training.config import TrainConfig

_METHOD = 'algorithm.name'
_ADVICE = 'Correct the file; configs/debian_sweep.py is an example.'


class SweepFile:
  """A sweep file as it was when it was read.

  Attributes:
    path: As typed.
    base: The config that `get_config()` and the overrides give.
    sweep: What `get_sweep()` returned.
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
    sweep = config_files.call_in_file(pathlib.Path(path), 'get_sweep', _ADVICE)
    sweep = _plain(sweep)
    # First: the base may hold settings of a method that the sweep names.
    _find_methods(sweep.get('grid'))
    self.base, _ = config_loading.build_config(self._values)
    self.sweep: SweepConfig = parse_sweep(sweep, self.base, repr(self.path))
    self._require_not_overridden()

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
      settings: A point of the grid, or of a search's group. Settings that are
        tied to others stay.
    """
    name = settings.get(_METHOD, self.base.algorithm.name)
    method = registry.find_or_none(name)
    if method is None:
      return settings
    unread = {
      axis.names[0]
      for axis in self.sweep.axes
      if len(axis.names) == 1 and _is_unread(axis.names[0], method)
    }
    return {n: value for n, value in settings.items() if n not in unread}

  def require_read(self, configs: Sequence[TrainConfig]) -> list[str]:
    """Returns settings of the base that no run reads, as 'section.setting'.

    Args:
      configs: The runs' configs.

    Raises:
      UserError: If no run reads an override or an axis.
    """
    methods = {config.algorithm.name: config.method for config in configs}
    section = AlgorithmConfig.section
    given = {f'{section}.{n}' for n in self._values.sections.get(section, ())}
    varied = {name for axis in self.sweep.axes for name in axis.names}
    unread = [
      name
      for name in sorted(given | varied)
      if all(_is_unread(name, method) for method in methods.values())
    ]
    for name in unread:
      place = f'`grid` in {self.path!r}' if name in varied else ''
      if name in self._values.overridden:
        place = f'`--config.{name}`'
      if place:
        readers = ', '.join(registry.readers(name.partition('.')[2]))
        raise UserError(
          f'{place} sets {name!r}, which no run of the sweep reads: their '
          f'methods are {", ".join(methods)}, and it is read by {readers}. '
          'Leave it out.'
        )
    return unread

  def _require_not_overridden(self):
    sweep = self.sweep
    varied = {name: 'grid' for axis in sweep.axes for name in axis.names}
    for axis in sweep.search.axes if sweep.search else ():
      varied |= dict.fromkeys(axis.names, 'learning_rate_search')
    for name in sorted(self._values.overridden & varied.keys()):
      raise UserError(
        f'`--config.{name}` must be left out: `{varied[name]}` in '
        f'{self.path!r} varies it.'
      )


def _find_methods(axes: Any) -> None:
  """Imports the methods that a grid names, so that their settings are known."""
  for key, values in axes.items() if isinstance(axes, Mapping) else ():
    names = [name.strip() for name in str(key).split(',')]
    if _METHOD in names and isinstance(values, list | tuple):
      position = names.index(_METHOD)
      for value in values:
        row = value if isinstance(value, list | tuple) else [value]
        if len(row) > position and isinstance(row[position], str):
          registry.find_or_none(row[position])


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
