"""Config files and overrides: settings as a user types them, unchecked."""

import ast
import contextlib
import dataclasses
import difflib
import os
import pathlib
import runpy
import traceback
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish import removed
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig

SHIPPED = pathlib.Path(__file__).resolve().parents[2] / 'configs'
"""The directory of the shipped configs; an installation has it, too."""
PREFIX = '--config.'
SECTIONS = {
  section.name: section.type for section in dataclasses.fields(TrainConfig)
}
"""Class of each section of a config, by its name."""


@dataclasses.dataclass(frozen=True)
class ConfigValues:
  """Settings as a file and overrides give them, before they are checked."""

  source: str
  """File that they come from; named in errors."""
  sections: Mapping[str, Any]
  """Values by section and setting. `algorithm` may hold settings of several
  methods."""
  overridden: frozenset[str] = frozenset()
  """Names of the overridden settings, as 'section.setting'."""
  problems: tuple[str, ...] = ()
  """Clauses on overrides that cannot be applied."""


def read_values(
  path: str | os.PathLike, overrides: Sequence[str] = ()
) -> ConfigValues:
  """Reads a config file and applies overrides, without checking the result.

  See `loading.load_config`.

  Raises:
    UserError: If the file cannot be used, or an argument is no override.
  """
  config_dict = call_in_file(pathlib.Path(path), 'get_config')
  return apply_overrides(config_dict, overrides, path)


def apply_overrides(
  config_dict: Any, overrides: Sequence[str], path: str | os.PathLike
) -> ConfigValues:
  """Returns the values of a ConfigDict of sections with overrides applied.

  Args:
    config_dict: The values; it is changed.
    overrides: See `loading.load_config`.
    path: The file that they come from, for errors.

  Raises:
    UserError: If a value is missing, or an argument is no override.
  """
  from ml_collections.config_dict import RequiredValueError

  pairs, problems = _split_overrides(overrides)
  name = pairs.get('algorithm.name')
  if name is None:
    # `to_dict` says below where a value is missing.
    with contextlib.suppress(RequiredValueError):
      name = method_name(config_dict)
  method = registry.find_or_none(name or '')
  for setting, text in pairs.items():
    # The settings of a module that cannot be imported are not known.
    section, _, leaf = setting.partition('.')
    is_of_method = section == AlgorithmConfig.section and leaf != 'name'
    if is_of_method and not method and '.' in (name or ''):
      continue
    problems += _apply_override(config_dict, setting, text, method)
  try:
    sections = config_dict.to_dict()
  except Exception as error:
    raise UserError(
      f'`--config` {str(path)!r} must give every setting a value, but '
      f'reading them raised {_one_line(error)}. Correct the file.'
    ) from error
  return ConfigValues(
    f'{str(path)!r}', sections, frozenset(pairs), tuple(problems)
  )


def with_settings(
  values: ConfigValues, settings: Mapping[str, Any], source: str
) -> ConfigValues:
  """Returns the values with others for some settings.

  Args:
    values: The values.
    settings: Values by 'section.setting'.
    source: Name of the result in errors.
  """
  sections = {
    section: dict(given) if isinstance(given, Mapping) else given
    for section, given in values.sections.items()
  }
  for setting, value in settings.items():
    section, leaf = setting.split('.')
    sections.setdefault(section, {})[leaf] = value
  return dataclasses.replace(values, sections=sections, source=source)


def plain(value: Any) -> Any:
  """Returns `value` with every ConfigDict in it as a dictionary."""
  if hasattr(value, 'to_dict'):
    value = value.to_dict()
  if isinstance(value, Mapping):
    return {key: plain(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [plain(inner) for inner in value]
  return value


def shipped_configs() -> dict[str, str]:
  """Returns the first line of each shipped config's docstring, by name."""
  return {
    path.stem: ast.get_docstring(ast.parse(path.read_text('utf-8'))).split(
      '\n'
    )[0]
    for path in sorted(SHIPPED.glob('[!_]*.py'))
  }


def call_in_file(
  path: pathlib.Path,
  function: str,
  advice: str = 'Correct the file; `fedfish configs` lists examples.',
) -> Any:
  """Returns the ConfigDict that a function of a Python file returns.

  Args:
    path: The file or the name, as typed after `--config`. The file is run.
    function: Name of the function.
    advice: Ends the errors.

  Raises:
    UserError: If there is no such file, it does not run, or the function is
      missing or returns anything else.
  """
  from ml_collections import ConfigDict

  path = _find_config(path)
  try:
    called = runpy.run_path(str(path)).get(function)
    config_dict = called() if callable(called) else None
  except (Exception, SystemExit) as error:
    # The last frame inside the file: what the reader can change.
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == str(path)
    ]
    line = lines[-1] if lines else getattr(error, 'lineno', None)
    where = f' in line {line}' if line else ''
    raise UserError(
      f'`--config` {str(path)!r} must run without errors, but raised '
      f'{_one_line(error)}{where}. {advice}'
    ) from error
  if not callable(called):
    raise UserError(
      f'`--config` {str(path)!r} must define a function `{function}()`, but '
      f'defines none. {advice}'
    )
  if not isinstance(config_dict, ConfigDict):
    raise UserError(
      f'`{function}()` in {str(path)!r} must return an '
      f'ml_collections.ConfigDict, found {type(config_dict).__name__}. '
      f'{advice}'
    )
  return config_dict


def fields_of(method: Method | None) -> dict[str, dataclasses.Field]:
  """Returns the settings that a method reads, as 'section.setting' -> field.

  None: those that all methods read.
  """
  settings = method.settings if method else AlgorithmConfig
  return {
    f'{section.name}.{field.name}': field
    for section in dataclasses.fields(TrainConfig)
    for field in dataclasses.fields(
      settings if section.name == AlgorithmConfig.section else section.type
    )
  }


def field_of_any(dotted: str) -> dataclasses.Field | None:
  """Returns the field of a setting that another method reads."""
  section, _, name = dotted.partition('.')
  readers = registry.readers(name) if section == AlgorithmConfig.section else ()
  return (
    registry.settings_of(registry.find(readers[0]))[name] if readers else None
  )


def method_name(values: Any) -> str:
  """Returns `algorithm.name` of a mapping or ConfigDict; '' if no string."""
  section = values.get(AlgorithmConfig.section)
  name = section.get('name') if hasattr(section, 'get') else None
  return name if isinstance(name, str) else ''


def unknown(dotted: str, prefix: str, method: Method | None) -> str:
  """Says that `dotted` is no setting, and what to do instead."""
  if advice := removed.SETTINGS.get(dotted):
    return f'`{prefix}{dotted}` was removed: {advice.removesuffix(".")}'
  leaf, names = dotted.rpartition('.')[2], fields_of(method)
  same_leaf = [name for name in names if name.endswith(f'.{leaf}')]
  sections = [] if '.' in dotted else SECTIONS
  candidates = same_leaf or [*names, *sections]
  nearest = difflib.get_close_matches(dotted, candidates, n=1, cutoff=0)[0]
  return (
    f'`{prefix}{dotted}` is unknown; the nearest known one is '
    f'`{prefix}{nearest}`'
  )


def _find_config(typed):
  """Returns the file that `--config` names, which wins over a shipped one."""
  path = pathlib.Path(typed)
  if path.is_file():
    return path
  shipped = SHIPPED / f'{path}.py'
  if shipped.parent == SHIPPED and str(path) in shipped_configs():
    return shipped
  found = 'is a directory' if path.is_dir() else 'does not exist'
  raise UserError(
    '`--config` must name a Python file or a shipped config, but '
    f'{str(path)!r} {found}. The shipped ones are '
    f'{", ".join(shipped_configs())}.'
  )


def _one_line(error):
  """Returns an exception's type and text without line breaks."""
  text = ' '.join(str(error).split())
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


def _split_overrides(arguments):
  """Returns text by dotted name, and what is repeated or has no value."""
  pairs, problems, remaining = {}, [], list(arguments)
  while remaining:
    argument = remaining.pop(0)
    if not argument.startswith(PREFIX):
      raise UserError(
        f'unrecognized argument {argument!r}. Settings are overridden as '
        '--config.section.setting=value.'
      )
    name, equals, text = argument.removeprefix(PREFIX).partition('=')
    if not equals:
      if not remaining or remaining[0].startswith('--'):
        problems.append(f'`{PREFIX}{name}` needs a value, as {argument}=VALUE')
        continue
      text = remaining.pop(0)
    if name in pairs:
      problems.append(f'`{PREFIX}{name}` is given twice; give it once')
      continue
    pairs[name] = text
  return pairs, problems


def _apply_override(config_dict, dotted, text, method):
  """Sets one setting in `config_dict`; returns what is wrong."""
  if dotted in SECTIONS:
    first = dataclasses.fields(SECTIONS[dotted])[0].name
    return [
      f'`{PREFIX}{dotted}` is a section; name one of its settings, such as '
      f'`{PREFIX}{dotted}.{first}`'
    ]
  field = fields_of(method).get(dotted) or field_of_any(dotted)
  if field is None:
    return [unknown(dotted, PREFIX, method)]
  section, name = dotted.split('.')
  with config_dict.unlocked(), config_dict.ignore_type():
    if config_dict.get(section) is None:
      config_dict[section] = {}
    try:
      config_dict[section][name] = _parse(text, field.type)
    except TypeError:
      return [f'`config.{section}` must be a section of settings in the file']
  return []


def _parse(text, annotation):
  """Returns the value that `text` spells, or `text` where it spells none."""
  if isinstance(annotation, types.UnionType):
    if text.lower() == 'none':
      return None
    annotation = typing.get_args(annotation)[0]
  if annotation is bool:
    return {'true': True, 'false': False}.get(text.lower(), text)
  if annotation in (int, float):
    with contextlib.suppress(ValueError):
      return annotation(text)
  return text
