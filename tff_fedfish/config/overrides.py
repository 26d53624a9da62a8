"""The settings that exist, and overrides of them on the command line."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig

PREFIX = '--config.'
SECTIONS = {
  section.name: section.type for section in dataclasses.fields(TrainConfig)
}
"""Class of each section of a config, by its name."""


def fields_of(method: Method | None) -> dict[str, dataclasses.Field]:
  """Returns the settings of a run, as 'section.setting' -> field.

  Args:
    method: The run's method. None: only settings that all methods read.
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
  for reader in readers:
    return registry.settings_of(registry.find(reader))[name]
  return None


def method_name(values: Any) -> str:
  """Returns `algorithm.name`, '' where it is missing or no string.

  Args:
    values: A mapping or a ConfigDict of sections.
  """
  section = values.get(AlgorithmConfig.section)
  name = section.get('name') if hasattr(section, 'get') else None
  return name if isinstance(name, str) else ''


def split_overrides(
  arguments: Sequence[str], problems: list[str]
) -> Iterator[tuple[str, str]]:
  """Yields each override's dotted name and text; says what is repeated."""
  seen = set()
  remaining = list(arguments)
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
    if name in seen:
      problems.append(f'`{PREFIX}{name}` is given twice; give it once')
      continue
    seen.add(name)
    yield name, text


def apply_override(
  config_dict: Any, dotted: str, text: str, method: Method | None
) -> str:
  """Sets one setting in `config_dict`; returns what is wrong, '' if nothing."""
  if dotted in SECTIONS:
    first = dataclasses.fields(SECTIONS[dotted])[0].name
    return (
      f'`{PREFIX}{dotted}` is a section; name one of its settings, such as '
      f'`{PREFIX}{dotted}.{first}`'
    )
  field = fields_of(method).get(dotted) or field_of_any(dotted)
  if field is None:
    return unknown(dotted, PREFIX, method)
  value = _parse(text, field.type)
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


def unread(dotted: str, method_name: str) -> str:
  """Says that the method does not read a setting, and which methods do."""
  readers = ', '.join(registry.readers(dotted.partition('.')[2]))
  return (
    f'`{PREFIX}{dotted}` is not read by {method_name}, but by {readers}; '
    f'leave it out, or set `{PREFIX}algorithm.name` to one of these'
  )


def unknown(dotted: str, prefix: str, method: Method | None) -> str:
  """Says that `dotted` is no setting, and which is nearest to it."""
  leaf, names = dotted.rpartition('.')[2], fields_of(method)
  same_leaf = [name for name in names if name.endswith(f'.{leaf}')]
  sections = [] if '.' in dotted else SECTIONS
  candidates = same_leaf or [*names, *sections]
  nearest = difflib.get_close_matches(dotted, candidates, n=1, cutoff=0)[0]
  return (
    f'`{prefix}{dotted}` is unknown; the nearest known one is '
    f'`{prefix}{nearest}`'
  )
