"""From given settings to a checked `TrainConfig`, and from there to JSON."""

import contextlib
import dataclasses
import operator
import os
import pathlib
import sys
from collections.abc import Collection, Sequence
from typing import Any

from tff_fedfish import files
from tff_fedfish.config import given, names, resolve, rules
from tff_fedfish.config.given import Given
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.fields import ConfigError
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import Method

CONFIG_NAME = 'config.json'
"""Every setting of a run, resolved."""


def load_config(
  path: str | os.PathLike,
  overrides: Sequence[str] = (),
  *,
  workdir: str | os.PathLike | None = None,
) -> TrainConfig:
  """Reads a config file, applies overrides and checks the result.

  Settings of other methods in the file are left out. An overridden optimizer
  has its default learning rate unless that is overridden, too. Both are named
  on standard error.

  Args:
    path: A Python file whose `get_config()` returns a dictionary of sections,
      which is run, or the config.json of a run, or the name of a shipped
      config.
    overrides: Arguments as typed: '--config.section.setting=value', or that
      name and the value as two arguments.
    workdir: Directory where the run starts or continues. A run that continues
      keeps what neither its first start nor this one gives.

  Raises:
    UserError: If the file or a directory that it names cannot be used, or an
      argument is no override.
    ConfigError: Naming all unknown, repeated, missing and wrong settings, and
      overrides of settings that the method does not read.
  """
  values = given.read_values(path, overrides)
  overridden = values.overridden
  for note in values.notes.values():
    print(f'fedfish: note: {note}', file=sys.stderr)
  if workdir is not None:
    values = _continued(values, pathlib.Path(workdir))
  config, unread = build_config(values, required=overridden)
  if not config.method.takes_server_step:
    unread += [f'server.{name}' for name in config.server.changed()]
  if unread:
    print_unread([config.algorithm.name], unread)
  for clause in rules.unread_required(config):
    print(f'fedfish: note: {clause}', file=sys.stderr)
  return config


def build_config(
  values: Given, *, required: Collection[str] = ()
) -> tuple[TrainConfig, list[str]]:
  """Checks values and builds the config of their method.

  Args:
    values: The values.
    required: Settings, as 'section.setting', that the method must read.

  Returns:
    The config, and the settings that were left out as the method does not read
    them, as 'section.setting'.

  Raises:
    ConfigError: Naming all unknown, missing and wrong settings.
  """
  problems, method = [*values.problems], None
  if name := names.method_name(values.settings):
    try:
      method = registry.find(name)
    except UserError as error:
      problems.append(str(error).removesuffix('.'))
  known, unread = _known_settings(values, method, required, problems)
  sections = _build_sections(known, method, problems)
  try:
    facts = resolve.facts_of(values.facts)
    if not problems:
      sections = resolve.resolve(
        sections,
        facts,
        has_vocabulary_size=known.get('model.vocabulary_size') is not None,
      )
      return TrainConfig(**sections), unread
  except ConfigError as error:
    problems += error.problems
  raise ConfigError(problems, values.source)


def print_unread(methods: Sequence[str], settings: Sequence[str]) -> None:
  """Names settings that no method of a command reads, on standard error."""
  verb = 'ignores' if len(methods) == 1 else 'ignore'
  print(
    f'fedfish: note: {", ".join(methods)} {verb} {", ".join(settings)}',
    file=sys.stderr,
  )


def to_json_dict(config: TrainConfig) -> dict[str, Any]:
  """Returns the content of config.json: every setting, resolved, by section."""
  values = {'schema_version': given.SCHEMA_VERSION}
  values |= dataclasses.asdict(config)
  facts = values.pop('resolved').items()
  if known := {name: value for name, value in facts if value is not None}:
    values['resolved'] = known
  return values


def from_json_dict(values: Any, source: str) -> TrainConfig:
  """Returns the config that `to_json_dict` turned into `values`.

  Raises:
    UserError: See `given.from_json`.
    ConfigError: Naming all unknown, missing and wrong settings.
  """
  return build_config(given.from_json(values, source))[0]


def write_config(path: pathlib.Path, config: TrainConfig) -> None:
  """Writes a config.json: `to_json_dict`, and where relative paths start.

  A path stays as it was typed first as long as all mean the same places.
  """
  values = to_json_dict(config) | {given.DIRECTORY: os.getcwd()}
  with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
    kept = _read(path)
    if _places(kept) == _places(values):
      values[given.DIRECTORY] = kept[given.DIRECTORY]
      for section, _, name in (path.partition('.') for path in names.PATHS):
        values[section][name] = kept[section][name]
  files.write_json(path, values)


def _places(values):
  """Returns the absolute paths of a config.json, by setting."""
  return {
    dotted: given.place_of(
      dotted, values[section][name], values[given.DIRECTORY]
    )
    for dotted in names.PATHS
    for section, _, name in [dotted.partition('.')]
  }


def differences(first: TrainConfig, second: TrainConfig) -> list[str]:
  """Returns the names, as 'section.setting', in which two configs differ.

  Spellings of one `training.start_from` do not differ. Left out are
  `training.max_non_finite_rounds`, which changes no number, and the threads,
  which a run keeps.
  """
  sections = dataclasses.asdict(first), dataclasses.asdict(second)
  names_of_all = [
    f'{section}.{name}'
    for section, values in sections[0].items()
    for name, value in values.items()
    if sections[1][section].get(name, value) != value
    and name not in ('max_non_finite_rounds', 'num_threads')
  ]
  starts = first.training.start_from, second.training.start_from
  if None not in starts and files.are_same(*starts):
    return [name for name in names_of_all if name != 'training.start_from']
  return names_of_all


def _continued(values, workdir):
  """Returns the values over those of the run in `workdir`, if there is one.

  What is not typed now is as in the run, resolved defaults included.
  """
  try:
    kept = from_json_dict(_read(workdir / CONFIG_NAME), CONFIG_NAME)
  except (OSError, ValueError, UserError):
    # `run_directory` says what is wrong with it.
    return values
  if kept.algorithm.name != names.method_name(values.settings):
    return values
  if kept.model.preset != values.settings.get('model.preset'):
    return values
  settings = {
    name: operator.attrgetter(name)(kept)
    for name in names.fields_of(kept.method)
  }
  for name, value in values.settings.items():
    # A size of None is left to the preset or the directory.
    if value is not None or name.partition('.')[0] != 'model':
      settings[name] = value
  facts = dataclasses.asdict(kept.resolved)
  return dataclasses.replace(values, settings=settings, facts=facts)


def _read(path):
  return files.parse_json(path.read_bytes())


def _known_settings(values, method, required, problems):
  """Returns the settings that the method reads, and the names of others.

  Adds clauses on unknown ones to `problems`.
  """
  known, unread, fields = {}, [], names.fields_of(method)
  name = names.method_name(values.settings)
  for dotted, value in values.settings.items():
    if dotted in fields:
      known[dotted] = value
    elif not names.field_of_any(dotted):
      # Without its method, nothing is known of a setting of `algorithm`.
      if method is not None or not dotted.startswith('algorithm.'):
        problems.append(names.unknown(dotted, 'config.', method))
    elif dotted in required and method:
      readers = registry.readers(dotted)
      problems.append(
        f'`{names.PREFIX}{dotted}` is not read by {name}, but by '
        f'{", ".join(readers)}; leave it out, or set '
        f'`{names.PREFIX}algorithm.name` to one of these'
      )
    else:
      unread.append(dotted)
  return known, unread


def _build_sections(known, method, problems):
  """Returns the sections as their classes; adds what is wrong to `problems`."""
  sections, settings = {}, given.to_sections(known)
  for name, section_class in names.SECTIONS.items():
    if method and name == Method.section:
      section_class = method
    # A missing setting must not hide what is wrong with the others.
    fields = dataclasses.fields(section_class)
    missing = [f.name for f in fields if f.default is dataclasses.MISSING]
    values = dict.fromkeys(missing, dataclasses.MISSING)
    try:
      sections[name] = section_class(**values | settings.get(name, {}))
    except ConfigError as error:
      problems += error.problems
  return sections
