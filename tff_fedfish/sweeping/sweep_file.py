"""Reads a sweep file: a config file with `get_sweep()` besides."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.config import files as config_files
from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig
from tff_fedfish.sweeping.grid import Axis, Settings
from tff_fedfish.sweeping.sweep_config import SweepConfig, parse_sweep

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
      settings: A point of the grid, or of a search's group, with or without
        the rates that it tries. Settings that are tied to others stay.
    """
    name = settings.get(_METHOD, self.base.algorithm.name)
    method = registry.find_or_none(name)
    if method is None:
      return settings
    unread = {
      axis.names[0]
      for axis in (*self.sweep.axes, *self._search_axes)
      if len(axis.names) == 1 and _is_unread(axis.names[0], method)
    }
    return {n: value for n, value in settings.items() if n not in unread}

  def require_read(self, configs: Sequence[TrainConfig]) -> list[str]:
    """Returns settings of the base that no run reads, as 'section.setting'.

    Args:
      configs: The runs' configs, without those of searches.

    Raises:
      UserError: If no run reads an override or an axis, of the grid or of the
        search.
    """
    section = AlgorithmConfig.section
    given = {f'{section}.{n}' for n in self._values.sections.get(section, ())}
    places = {
      name: f'`{key}` in {self.path!r}' for name, key in self._varied().items()
    }
    places |= {name: f'`--config.{name}`' for name in self._values.overridden}
    unread = _unread(sorted(given | self._varied().keys()), configs)
    _require_none(unread, places, configs, 'sweep')
    return unread

  def require_searched(self, configs: Sequence[TrainConfig]) -> None:
    """Checks that of each setting that is searched some search run reads it.

    Args:
      configs: Those of the search runs.

    Raises:
      UserError: Naming one that none of them reads.
    """
    place = f'`learning_rate_search` in {self.path!r}'
    searched = {
      name: place for axis in self._search_axes for name in axis.names
    }
    _require_none(
      _unread(sorted(searched), configs), searched, configs, 'search'
    )

  @property
  def _search_axes(self) -> tuple[Axis, ...]:
    return self.sweep.search.axes if self.sweep.search else ()

  def _varied(self) -> dict[str, str]:
    """Returns the key of `get_sweep()` that varies a setting, by its name."""
    varied = {name: 'grid' for axis in self.sweep.axes for name in axis.names}
    for axis in self._search_axes:
      varied |= dict.fromkeys(axis.names, 'learning_rate_search')
    return varied

  def _require_not_overridden(self):
    varied = self._varied()
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


def _unread(
  settings: Sequence[str], configs: Sequence[TrainConfig]
) -> list[str]:
  """Returns those of some settings that no config's method reads."""
  methods = {config.algorithm.name: config.method for config in configs}
  return [
    name
    for name in settings
    if all(_is_unread(name, method) for method in methods.values())
  ]


def _require_none(
  unread: Sequence[str],
  places: Mapping[str, str],
  configs: Sequence[TrainConfig],
  kind: str,
) -> None:
  """Raises UserError for the first unread setting that has a place."""
  methods = dict.fromkeys(config.algorithm.name for config in configs)
  for name in unread:
    if name in places:
      readers = ', '.join(registry.readers(name.partition('.')[2]))
      raise UserError(
        f'{places[name]} sets {name!r}, which no run of the {kind} reads: '
        f'their methods are {", ".join(methods)}, and it is read by {readers}. '
        'Leave it out.'
      )


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
