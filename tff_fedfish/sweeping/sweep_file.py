"""Reads a sweep file: a config file with `get_sweep()` besides."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.sweep_config import SweepConfig, parse_sweep
from tff_fedfish.training import config_files, config_loading
from tff_fedfish.training.config import TrainConfig

# A preset fills in sizes, which a config that is made from another one must
# not inherit: the file is read again with it.
_PRESET = 'model.preset'
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
    self._overrides = list(overrides)
    self.base = config_loading.load_config(path, overrides)
    values = config_files.call_in_file(pathlib.Path(path), 'get_sweep', _ADVICE)
    self.sweep: SweepConfig = parse_sweep(
      _plain(values), self.base, repr(self.path)
    )
    self._require_not_overridden()

  def config(self, settings: Settings, name: str) -> TrainConfig:
    """Returns the base config with other values of some settings.

    Args:
      settings: The values, by 'section.setting'.
      name: The run's name, for errors.

    Raises:
      ConfigError: Naming all unknown and wrong settings.
    """
    sections = dataclasses.asdict(self._base_for(settings))
    for setting, value in settings.items():
      section, leaf = setting.split('.')
      sections.setdefault(section, {})[leaf] = value
    return config_loading.from_json_dict(
      {'schema_version': config_loading.SCHEMA_VERSION, **sections},
      f'{self.path}, run {name}',
    )

  def _base_for(self, settings):
    if _PRESET not in settings:
      return self.base
    return config_loading.load_config(
      self.path, [*self._overrides, f'--config.{_PRESET}={settings[_PRESET]}']
    )

  def _require_not_overridden(self):
    sweep = self.sweep
    varied = {name: 'grid' for axis in sweep.axes for name in axis.names}
    for axis in sweep.search.axes if sweep.search else ():
      varied |= dict.fromkeys(axis.names, 'learning_rate_search')
    for argument in self._overrides:
      name = argument.removeprefix('--config.').partition('=')[0]
      if argument.startswith('--config.') and name in varied:
        raise UserError(
          f'`--config.{name}` must be left out: `{varied[name]}` in '
          f'{self.path!r} varies it.'
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
