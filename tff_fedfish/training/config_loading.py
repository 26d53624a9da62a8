"""From a config file and typed overrides to a `TrainConfig`, and to JSON."""

import dataclasses
import difflib
import os
import pathlib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_fedfish.errors import UserError
from tff_fedfish.evaluation.client_id_text import client_id_to_text
from tff_fedfish.training import config as config_lib
from tff_fedfish.training import config_checks, config_files
from tff_fedfish.training.config_fields import ConfigError

SCHEMA_VERSION = 2
# What runs did before a setting existed, or while it had another default. A
# config.json of version 1 that leaves one out gets this value.
_LIMIT = 'training.max_non_finite_rounds'
_VERSION_1_DEFAULTS: Mapping[str, Any] = types.MappingProxyType({_LIMIT: 0})

_PREFIX = '--config.'
# Dotted name -> field, of every setting there is.
_FIELDS = {
  f'{section.name}.{field.name}': field
  for section in dataclasses.fields(config_lib.TrainConfig)
  for field in dataclasses.fields(section.type)
}
_SECTIONS = {
  section.name: section.type
  for section in dataclasses.fields(config_lib.TrainConfig)
}


def load_config(
  path: str | os.PathLike, overrides: Sequence[str] = ()
) -> config_lib.TrainConfig:
  """Reads a config file, applies overrides and checks the result.

  Args:
    path: A Python file whose `get_config()` returns an
      `ml_collections.ConfigDict` of sections. It is run.
    overrides: Arguments as typed: '--config.section.setting=value', or that
      name and the value as two arguments.

  Returns:
    The config.

  Raises:
    UserError: If the file cannot be used, or an argument is no override.
    ConfigError: Naming all unknown, repeated, missing and wrong settings.
  """
  config_dict = config_files.call_in_file(pathlib.Path(path), 'get_config')
  problems = []
  for name, text in _split_overrides(overrides, problems):
    problem = _apply_override(config_dict, name, text)
    problems += [problem] if problem else []
  try:
    values = config_dict.to_dict()
  except Exception as error:
    raise UserError(
      f'`--config` {str(path)!r} must give every setting a value, but '
      f'reading them raised {config_files.one_line(error)}. Correct the file.'
    ) from error
  return _from_dict(values, f'{str(path)!r}', problems)


def to_json_dict(config: config_lib.TrainConfig) -> dict[str, Any]:
  """Returns what config.json holds: every setting, resolved, by section."""
  return {'schema_version': SCHEMA_VERSION, **dataclasses.asdict(config)}


def from_json_dict(
  values: Mapping[str, Any], source: str
) -> config_lib.TrainConfig:
  """Returns the config that `to_json_dict` turned into `values`.

  Args:
    values: The parsed JSON object.
    source: The file that it comes from; named in errors.

  Raises:
    UserError: If it was written by a newer version, or is no config.
    ConfigError: Naming all unknown, missing and wrong settings.
  """
  version = (
    values.get('schema_version') if isinstance(values, Mapping) else None
  )
  if type(version) is not int or version < 1:
    raise UserError(
      f'{source!r} must be the config.json of a run, with an integer '
      f'`schema_version` of at least 1, found {version!r}. Name another run.'
    )
  if version > SCHEMA_VERSION:
    raise UserError(
      f'{source!r} has `schema_version` {version}, but this version of '
      f'fedfish reads up to {SCHEMA_VERSION}. Update fedfish.'
    )
  sections = {k: v for k, v in values.items() if k != 'schema_version'}
  if version == 1:
    sections = _completed(sections, _VERSION_1_DEFAULTS)
  return _from_dict(sections, f'{source!r}', [])


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a parsed config.json with the settings that came later.

  Args:
    values: Of any version; nothing in it is checked or changed.

  Returns:
    The same, where settings that are not given have the value with which the
    run was trained: their default, or in version 1 what was done then.
  """
  defaults = {
    dotted: field.default
    for dotted, field in _FIELDS.items()
    if field.default is not dataclasses.MISSING
  }
  if values.get('schema_version') == 1:
    defaults |= _VERSION_1_DEFAULTS
  return _completed(values, defaults)


def _completed(
  values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns sections of settings with those added that are not given."""
  completed = dict(values)
  for dotted, default in defaults.items():
    section, name = dotted.split('.')
    found = completed.get(section, {})
    if isinstance(found, Mapping) and name not in found:
      completed[section] = {**found, name: default}
  return completed


def differences(
  first: config_lib.TrainConfig, second: config_lib.TrainConfig
) -> list[str]:
  """Returns the names, as 'section.setting', in which two configs differ.

  Left out is `training.max_non_finite_rounds`: it says when a run is given up,
  nothing of its numbers, and runs of config.json version 1 had no such limit.
  """
  sides = (dataclasses.asdict(first), dataclasses.asdict(second))
  return [
    dotted
    for dotted in _FIELDS
    if dotted != _LIMIT and len({_setting(side, dotted) for side in sides}) > 1
  ]


def _setting(values: Mapping[str, Any], dotted: str) -> Any:
  section, name = dotted.split('.')
  return values[section][name]


def _split_overrides(
  arguments: Sequence[str], problems: list[str]
) -> Iterator[tuple[str, str]]:
  """Yields each override's dotted name and text; says what is repeated."""
  seen = set()
  remaining = list(arguments)
  while remaining:
    argument = remaining.pop(0)
    if not argument.startswith(_PREFIX):
      raise UserError(
        f'unrecognized argument {argument!r}. Settings are overridden as '
        '--config.section.setting=value.'
      )
    name, equals, text = argument.removeprefix(_PREFIX).partition('=')
    if not equals:
      if not remaining or remaining[0].startswith('--'):
        problems.append(f'`{_PREFIX}{name}` needs a value, as {argument}=VALUE')
        continue
      text = remaining.pop(0)
    if name in seen:
      problems.append(f'`{_PREFIX}{name}` is given twice; give it once')
      continue
    seen.add(name)
    yield name, text


def _apply_override(config_dict: Any, dotted: str, text: str) -> str:
  """Sets one setting in `config_dict`; returns what is wrong, '' if nothing."""
  if dotted in _SECTIONS:
    first = dataclasses.fields(_SECTIONS[dotted])[0].name
    return (
      f'`{_PREFIX}{dotted}` is a section; name one of its settings, such as '
      f'`{_PREFIX}{dotted}.{first}`'
    )
  if dotted not in _FIELDS:
    return _unknown(dotted, _PREFIX)
  value = _parse(text, _FIELDS[dotted].type)
  section, name = dotted.split('.')
  with config_dict.unlocked(), config_dict.ignore_type():
    if config_dict.get(section) is None:
      config_dict[section] = {}
    try:
      config_dict[section][name] = value
    except TypeError:
      return f'`config.{section}` must be a section of settings in the file'
  return ''


def _parse(text: str, annotation: Any) -> Any:
  """Returns the value that `text` spells, or `text` where it spells none."""
  if isinstance(annotation, types.UnionType):
    if text.lower() == 'none':
      return None
    annotation = typing.get_args(annotation)[0]
  if annotation is bool:
    return {'true': True, 'false': False}.get(text.lower(), text)
  if annotation in (int, float):
    try:
      return annotation(text)
    except ValueError:
      return text
  return text


def _from_dict(
  values: Mapping[str, Any], source: str, problems: list[str]
) -> config_lib.TrainConfig:
  """Builds every section, adding to `problems`, and then the whole."""
  sections = {}
  for name in values:
    if name not in _SECTIONS:
      problems.append(_unknown(str(name), 'config.'))
  for name, section_class in _SECTIONS.items():
    given = values.get(name, {})
    if not isinstance(given, Mapping):
      problems.append(
        f'`config.{name}` must be a section of settings, found {given!r}'
      )
      continue
    known = {}
    for key, value in given.items():
      if f'{name}.{key}' in _FIELDS:
        known[key] = value
      else:
        problems.append(_unknown(f'{name}.{key}', 'config.'))
    missing = [
      field.name
      for field in dataclasses.fields(section_class)
      if field.default is dataclasses.MISSING and field.name not in known
    ]
    problems += [f'`config.{name}.{key}` is required' for key in missing]
    try:
      # A missing setting must not hide what is wrong with the others.
      sections[name] = section_class(**known, **dict.fromkeys(missing))
    except ConfigError as error:
      problems += [
        problem
        for problem in error.problems
        if not any(f'`config.{name}.{key}`' in problem for key in missing)
      ]
  if not problems:
    sections['data'] = _with_image_shape(sections['data'])
    try:
      return config_lib.TrainConfig(**sections)
    except ConfigError as error:
      problems += error.problems
  raise ConfigError(problems, source)


def _with_image_shape(data: config_lib.DataConfig) -> config_lib.DataConfig:
  """Returns the section with what is left out of the images' shape.

  Raises:
    UserError: If it has to be read, but the corpus cannot be.
  """
  names = (*config_checks.IMAGE_SIZES, 'classes')
  given = {name: getattr(data, name) for name in names}
  if data.corpus != 'image_folder' or None not in given.values():
    return data
  # Late: it takes NumPy, which other configs need not wait for.
  from tff_fedfish.data.images.image_files import read_image
  from tff_fedfish.data.images.image_folder import ImageFolder

  folder = ImageFolder(data.directory)
  # That all others are like the first is found out where they are read.
  shape = read_image(folder.paths[0]).shape
  classes = '/'.join(map(client_id_to_text, folder.class_names))
  found = dict(zip(names, (*shape, classes), strict=True))
  found |= {name: value for name, value in given.items() if value is not None}
  return dataclasses.replace(data, **found)


def _unknown(dotted: str, prefix: str) -> str:
  """Says that `dotted` is no setting, and which is nearest to it."""
  leaf = dotted.rpartition('.')[2]
  same_leaf = [name for name in _FIELDS if name.endswith(f'.{leaf}')]
  sections = [] if '.' in dotted else _SECTIONS
  candidates = same_leaf or [*_FIELDS, *sections]
  nearest = difflib.get_close_matches(dotted, candidates, n=1, cutoff=0)[0]
  return (
    f'`{prefix}{dotted}` is unknown; the nearest known one is '
    f'`{prefix}{nearest}`'
  )
