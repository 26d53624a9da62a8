"""From a config file and typed overrides to a `TrainConfig`, and to JSON."""

import contextlib
import dataclasses
import operator
import os
import pathlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish import files, removed
from tff_fedfish.config import files as config_files
from tff_fedfish.config import schema as config_lib
from tff_fedfish.config.data_settings import IMAGE_SIZES
from tff_fedfish.config.files import ConfigValues, read_values
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.data.client_ids import client_id_to_text
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry
from tff_fedfish.methods.settings import AlgorithmConfig

SCHEMA_VERSION = 2


def load_config(
  path: str | os.PathLike,
  overrides: Sequence[str] = (),
  *,
  workdir: str | os.PathLike | None = None,
) -> config_lib.TrainConfig:
  """Reads a config file, applies overrides and checks the result.

  Settings of other methods in the file are left out and named on standard
  error.

  Args:
    path: A Python file whose `get_config()` returns an
      `ml_collections.ConfigDict` of sections. It is run.
    overrides: Arguments as typed: '--config.section.setting=value', or that
      name and the value as two arguments.
    workdir: Where the run starts or continues. One that continues keeps the
      sizes of the model that it started from.

  Raises:
    UserError: If the file or a directory that it names cannot be used, or an
      argument is no override.
    ConfigError: Naming all unknown, repeated, missing and wrong settings, and
      overrides of settings that the method does not read.
  """
  values = read_values(path, overrides)
  if workdir is not None:
    values = _with_kept_sizes(values, pathlib.Path(workdir))
  config, unread = build_config(values, required=values.overridden)
  if unread:
    print_unread([config.algorithm.name], unread)
  return config


def changed_run_config(
  config: config_lib.TrainConfig,
  source: str | os.PathLike,
  overrides: Sequence[str],
  *,
  settings: Mapping[str, Any],
  may_change: Collection[str],
) -> config_lib.TrainConfig:
  """Returns the config of a run with other settings.

  Args:
    config: The run's.
    source: Its file, for errors.
    overrides: See `load_config`.
    settings: Values by 'section.setting', applied before the overrides.
    may_change: Settings, besides those of `algorithm`, that may be overridden.

  Raises:
    UserError: If another setting is overridden.
    ConfigError: See `load_config`.
  """
  from ml_collections import ConfigDict

  given = ConfigValues(str(source), dataclasses.asdict(config))
  given = config_files.with_settings(given, settings, given.source)
  values = config_files.apply_overrides(
    ConfigDict(given.sections), overrides, source
  )
  for name in sorted(values.overridden):
    if not name.startswith('algorithm.') and name not in may_change:
      raise UserError(
        f'`{config_files.PREFIX}{name}` must be as in {str(source)!r}, whose '
        'clients are used as they were trained. Leave it out.'
      )
  # What else is not read is the other method's.
  return build_config(values, required=values.overridden)[0]


def build_config(
  values: ConfigValues, *, required: Collection[str] = ()
) -> tuple[config_lib.TrainConfig, list[str]]:
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
  given_sections, problems, unread = values.sections, [*values.problems], []
  sections, method = {}, None
  method_name = config_files.method_name(given_sections)
  if method_name:
    try:
      method = registry.find(method_name)
    except UserError as error:
      problems.append(str(error).removesuffix('.'))
  is_missing = method is None and '.' in (method_name or '')
  known_fields = config_files.fields_of(method)
  for name, given in given_sections.items():
    if name not in config_files.SECTIONS:
      keys = given if isinstance(given, Mapping) else ()
      dotted = [f'{name}.{key}' for key in keys]
      dotted = [d for d in dotted if d in removed.SETTINGS] or [str(name)]
      problems += [config_files.unknown(d, 'config.', method) for d in dotted]
  for name, section_class in config_files.SECTIONS.items():
    if method and name == AlgorithmConfig.section:
      section_class = method.settings
    given = given_sections.get(name, {})
    if not isinstance(given, Mapping):
      problems.append(
        f'`config.{name}` must be a section of settings, found {given!r}'
      )
      continue
    known = {}
    for key, value in given.items():
      dotted = f'{name}.{key}'
      if dotted in known_fields:
        known[key] = value
      elif name == AlgorithmConfig.section and is_missing:
        # The settings of a module that cannot be imported are not known.
        pass
      elif not config_files.field_of_any(dotted):
        problems.append(config_files.unknown(dotted, 'config.', method))
      elif dotted in required and method:
        readers = ', '.join(registry.readers(key))
        problems.append(
          f'`{config_files.PREFIX}{dotted}` is not read by {method_name}, but '
          f'by {readers}; leave it out, or set '
          f'`{config_files.PREFIX}algorithm.name` to one of these'
        )
      else:
        unread.append(dotted)
    # A missing setting must not hide what is wrong with the others.
    fields = dataclasses.fields(section_class)
    missing = [f.name for f in fields if f.default is dataclasses.MISSING]
    try:
      sections[name] = section_class(
        **dict.fromkeys(missing, dataclasses.MISSING) | known
      )
    except ConfigError as error:
      problems += error.problems
  if not problems:
    sections['data'] = _with_image_shape(sections['data'])
    sections['model'] = _with_directory_sizes(**sections)
    try:
      return config_lib.TrainConfig(**sections), unread
    except ConfigError as error:
      problems += error.problems
  raise ConfigError(problems, values.source)


def print_unread(methods: Sequence[str], settings: Sequence[str]) -> None:
  """Names settings that no method of a command reads, on standard error."""
  print(
    f'fedfish: not read by {", ".join(methods)}: {", ".join(settings)}',
    file=sys.stderr,
  )


def to_json_dict(config: config_lib.TrainConfig) -> dict[str, Any]:
  """Returns what config.json holds: every setting, resolved, by section."""
  return {'schema_version': SCHEMA_VERSION, **dataclasses.asdict(config)}


def from_json_dict(
  values: Mapping[str, Any], source: str
) -> config_lib.TrainConfig:
  """Returns the config that `to_json_dict` turned into `values`.

  Raises:
    UserError: If it was written by another version, or is no config; names the
      file that is its source.
    ConfigError: Naming all unknown, missing and wrong settings.
  """
  is_object = isinstance(values, Mapping)
  version = values.get('schema_version') if is_object else None
  if type(version) is not int or version < 1:
    raise UserError(
      f'{source!r} must be the config.json of a run, with an integer '
      f'`schema_version` of at least 1, found {version!r}. Name another run.'
    )
  if version != SCHEMA_VERSION:
    advice = 'Update fedfish.'
    if version < SCHEMA_VERSION:
      advice = 'Train the run again, or use the version that wrote it.'
    raise UserError(
      f'{source!r} must have `schema_version` {SCHEMA_VERSION} with this '
      f'version of fedfish, found {version}. {advice}'
    )
  sections = removed.without_removed(values)
  del sections['schema_version']
  return build_config(ConfigValues(f'{source!r}', sections))[0]


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a parsed config.json with the defaults of what it leaves out.

  Settings of `algorithm` are completed only if the method reads them and its
  module can be imported. Nothing is checked.
  """
  method = registry.find_or_none(config_files.method_name(values))
  defaults = {
    dotted: field.default
    for dotted, field in config_files.fields_of(method).items()
    if field.default is not dataclasses.MISSING
  }
  completed = removed.without_removed(values)
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

  Left out is `training.max_non_finite_rounds`, which says when a run is given
  up and nothing of its numbers, and `training.start_from` where both spell one
  path.
  """
  starts = first.training.start_from, second.training.start_from
  has_same_start = None not in starts and files.are_same(*starts)
  of_second = config_files.fields_of(second.method)
  read = operator.attrgetter
  return [
    name
    for name in config_files.fields_of(first.method)
    if name in of_second
    and name != 'training.max_non_finite_rounds'
    and (name != 'training.start_from' or not has_same_start)
    and read(name)(first) != read(name)(second)
  ]


def _with_kept_sizes(values: ConfigValues, workdir: pathlib.Path):
  """Returns values with the sizes that a run read from a directory before."""
  given = values.sections.get('model', {})
  with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
    kept = files.parse_json((workdir / 'config.json').read_bytes())
    start = os.path.expanduser(values.sections['training']['start_from'])
    is_same = files.are_same(kept['training']['start_from'], start)
    if is_same and given['preset'] == kept['model']['preset'] == FROM_DIRECTORY:
      sizes = {name: kept['model'][name] for name in PRESETS['tiny']}
      found = {
        name: value for name, value in given.items() if value is not None
      }
      sections = {**values.sections, 'model': sizes | found}
      return dataclasses.replace(values, sections=sections)
  return values


def _with_directory_sizes(
  model: config_lib.ModelConfig,
  data: config_lib.DataConfig,
  training: config_lib.TrainingConfig,
  **_,
) -> config_lib.ModelConfig:
  """Returns the section with the sizes of the model to start from.

  Raises:
    UserError: If they have to be read, but cannot be.
  """
  given = {name: getattr(model, name) for name in PRESETS['tiny']}
  if model.preset != FROM_DIRECTORY or None not in given.values():
    return model
  if training.start_from is None:
    raise UserError(
      '`config.training.start_from` is required with preset '
      f"'{FROM_DIRECTORY}'. Name the directory of the model."
    )
  from tff_fedfish.huggingface import pretrained

  shape = pretrained.read_shape(
    training.start_from, '--config.training.start_from', data.sequence_length
  )
  found = {
    name: getattr(shape, name) if value is None else value
    for name, value in given.items()
  }
  return dataclasses.replace(model, **found)


def _with_image_shape(data: config_lib.DataConfig) -> config_lib.DataConfig:
  """Returns the section with what is left out of the images' shape.

  Raises:
    UserError: If it has to be read, but the corpus cannot be.
  """
  names = (*IMAGE_SIZES, 'classes')
  given = {name: getattr(data, name) for name in names}
  if data.corpus != 'image_folder' or None not in given.values():
    return data
  # Late: it takes NumPy, which other configs need not wait for.
  from tff_fedfish.data.images.folder import list_folder, read_image

  folder = list_folder(data.directory)
  # That all others are like the first is found out where they are read.
  shape = read_image(folder.paths[0]).shape
  classes = '/'.join(map(client_id_to_text, folder.class_names))
  found = dict(zip(names, (*shape, classes), strict=True))
  found |= {name: value for name, value in given.items() if value is not None}
  return dataclasses.replace(data, **found)
