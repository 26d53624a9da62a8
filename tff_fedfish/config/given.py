"""Settings as given by a file and on the command line, before any check."""

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

from models.transformer_config import FROM_DIRECTORY, PRESETS
from tff_fedfish import files
from tff_fedfish.config import names
from tff_fedfish.config.names import PREFIX
from tff_fedfish.config.optimizer_settings import DEFAULT_LEARNING_RATES
from tff_fedfish.errors import UserError
from tff_fedfish.methods import registry

SHIPPED = pathlib.Path(__file__).resolve().parents[2] / 'configs'
"""The directory of the shipped configs; an installation has it, too."""
SCHEMA_VERSION = 3
"""Version of config.json."""
DIRECTORY = 'working_directory'
"""Key of config.json, beside the sections: where relative paths start."""


@dataclasses.dataclass(frozen=True)
class Given:
  """Settings of a file and overrides, unchecked."""

  source: str
  """Name in errors."""
  settings: Mapping[str, Any]
  """Values by 'section.setting', of other methods, too."""
  facts: Any = dataclasses.field(default_factory=dict)
  """The section `resolved`, which only a config.json has."""
  overridden: frozenset[str] = frozenset()
  """Names of the overridden settings."""
  problems: tuple[str, ...] = ()
  """Clauses on sections and overrides that cannot be used."""
  notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
  """Lines to print on settings that follow from overridden ones, by setting."""

  def with_settings(self, settings: Mapping[str, Any], source: str) -> 'Given':
    """Returns the settings with other values, and another name in errors."""
    settings = {**self.settings, **settings}
    return dataclasses.replace(self, settings=settings, source=source)


def from_sections(sections: Mapping[str, Any], source: str) -> Given:
  """Returns the settings of a dictionary of sections."""
  settings, problems = {}, []
  for section, values in sections.items():
    is_known = section in names.SECTIONS
    if isinstance(values, Mapping) and (values or is_known):
      settings |= {f'{section}.{name}': v for name, v in values.items()}
    elif not is_known:
      problems.append(names.unknown(str(section), 'config.', None))
    else:
      problems.append(
        f'`config.{section}` must be a section of settings, found {values!r}'
      )
  return Given(source, settings, problems=tuple(problems))


def to_sections(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns values by 'section.setting' as a dictionary of sections."""
  sections = {}
  for dotted, value in settings.items():
    section, _, name = dotted.partition('.')
    sections.setdefault(section, {})[name] = value
  return sections


def from_json(values: Any, source: str) -> Given:
  """Returns the settings of a parsed config.json.

  Raises:
    UserError: If it was written by another version, or is no config; names
      its `source`.
  """
  is_object = isinstance(values, Mapping)
  version = values.get('schema_version') if is_object else None
  if type(version) is not int or version != SCHEMA_VERSION:
    advice = 'Name another run.'
    if type(version) is int:
      advice = 'Train the run again, or use the version that wrote it.'
      advice = 'Update fedfish.' if version > SCHEMA_VERSION else advice
    raise UserError(
      f'{source!r} must be the config.json of a run with `schema_version` '
      f'{SCHEMA_VERSION}, found {version!r}. {advice}'
    )
  sections = dict(values)
  del sections['schema_version']
  facts = sections.pop('resolved', {})
  directory = sections.pop(DIRECTORY, None)
  # A list of names, which earlier versions wrote.
  sections.pop('given', None)
  values = from_sections(sections, repr(source))
  settings = _located(values.settings, directory)
  return dataclasses.replace(values, settings=settings, facts=facts)


def place_of(name: str, typed: Any, directory: str = '') -> Any:
  """Returns the path that a setting means in a directory, absolute.

  None, addresses of stores and the vocabulary 'demo' mean the same everywhere.
  """
  is_path = isinstance(typed, str) and '://' not in typed
  if not is_path or (name, typed) == ('data.vocabulary', 'demo'):
    return typed
  return os.path.abspath(os.path.join(directory, os.path.expanduser(typed)))


def _located(settings, directory):
  """Returns settings whose paths start from the current directory.

  Paths are as typed where they mean the same from `directory`, and where
  nothing is there any more, as in a project that was moved.
  """
  settings = dict(settings)
  for name in names.PATHS & settings.keys():
    there = place_of(name, settings[name], directory or '')
    if there != place_of(name, settings[name]) and os.path.exists(there):
      settings[name] = there
  return settings


def read_values(
  path: str | os.PathLike, overrides: Sequence[str] = ()
) -> Given:
  """Reads a config file and applies overrides, without checking the result.

  See `load.load_config`.

  Raises:
    UserError: If the file cannot be used, or an argument is no override.
  """
  file = _find_config(path)
  if file.suffix == '.json':
    with files.explained(
      file, 'the config of a run', 'Restore it, or name another.'
    ):
      values = from_json(files.parse_json(file.read_bytes()), str(file))
  else:
    values = from_sections(call_in_file(file, 'get_config'), repr(str(path)))
  pairs, problems = _split_overrides(overrides)
  if file.suffix == '.json':
    values = _without_presets(values, pairs)
  name = pairs.get('algorithm.name', names.method_name(values.settings))
  method = registry.find_or_none(name)
  settings, notes = _default_rates(values.settings, pairs)
  for dotted, text in pairs.items():
    field = names.fields_of(method).get(dotted) or names.field_of_any(dotted)
    if field is not None:
      settings[dotted] = _parse(text, field.type)
    elif method is not None or not dotted.startswith('algorithm.'):
      problems.append(names.unknown(dotted, PREFIX, method))
  return dataclasses.replace(
    values.with_settings(settings, values.source),
    overridden=frozenset(pairs),
    problems=(*problems, *values.problems),
    notes=notes,
  )


def _default_rates(settings, overrides):
  """Returns the learning rates of optimizers that overrides change.

  A rate that is overridden too is left alone. The second value has a note on
  each rate.
  """
  rates, notes = {}, {}
  for section, defaults in DEFAULT_LEARNING_RATES.items():
    key, rate = f'{section}.optimizer', f'{section}.learning_rate'
    before = settings.get(key, names.fields_of(None)[key].default)
    optimizer, kept = overrides.get(key, before), settings.get(rate)
    if optimizer == before or rate in overrides:
      continue
    default = defaults.get(optimizer)
    if default == kept or None in (default, kept):
      continue
    rates[rate] = default
    notes[rate] = (
      f'{rate} is {default:g}, the default of {optimizer} (the '
      f"config's {kept} is for {before})."
    )
  return rates, notes


def _without_presets(values, overridden):
  """Returns values of a config.json without what overrides make void.

  Left out are the sizes of another preset and the facts of other images.
  """
  settings, facts = values.settings, values.facts
  is_from_directory = settings.get('model.preset') == FROM_DIRECTORY
  if 'model.preset' in overridden or (
    is_from_directory and 'training.start_from' in overridden
  ):
    sizes = {f'model.{name}' for name in PRESETS['tiny']}
    settings = {n: v for n, v in settings.items() if n not in sizes}
  if {'data.directory', 'data.corpus'} & overridden.keys():
    facts = {}
  return dataclasses.replace(values, settings=settings, facts=facts)


def base(
  name: str, changes: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
  """Returns the values of a shipped config, for a config file to build on.

  Args:
    name: Name of the shipped config.
    changes: Other values, by 'section.setting'.
  """
  values = call_in_file(SHIPPED / f'{name}.py', 'get_config')
  settings = from_sections(values, name).settings
  return to_sections({**settings, **(changes or {})})


def shipped_configs() -> dict[str, str]:
  """Returns the first line of each shipped config's docstring, by name."""
  return {
    path.stem: ast.get_docstring(ast.parse(path.read_text('utf-8'))).split(
      '\n'
    )[0]
    for path in sorted(SHIPPED.glob('[!_]*.py'))
  }


def call_in_file(
  path: str | os.PathLike,
  function: str,
  advice: str = 'Correct the file; `fedfish configs` lists examples.',
) -> dict[str, Any]:
  """Returns the dictionary that a function of a Python file returns.

  Args:
    path: The file or the name, as typed after `--config`. The file is run.
    function: Name of the function. It may also return an
      `ml_collections.ConfigDict`.
    advice: Ends the errors.

  Raises:
    UserError: If there is no such file, it does not run, or the function is
      missing or returns anything else.
  """
  path = _find_config(path)
  try:
    # The config.json of a run defines no function.
    is_json = path.suffix == '.json'
    called = None if is_json else runpy.run_path(str(path)).get(function)
    values = _plain(called()) if callable(called) else None
  except (Exception, SystemExit) as error:
    # The last frame inside the file: what the reader can change.
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == str(path)
    ]
    line = lines[-1] if lines else getattr(error, 'lineno', None)
    where = f' in line {line}' if line else ''
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    raise UserError(
      f'`--config` {str(path)!r} must run without errors, but raised '
      f'{text.removesuffix(":")}{where}. {advice}'
    ) from error
  if not callable(called):
    raise UserError(
      f'`--config` {str(path)!r} must define a function `{function}()`, but '
      f'defines none. {advice}'
    )
  if not isinstance(values, Mapping):
    raise UserError(
      f'`{function}()` in {str(path)!r} must return a dictionary, found '
      f'{type(values).__name__}. {advice}'
    )
  return dict(values)


def _plain(value):
  """Returns a value with every ConfigDict in it as a dictionary."""
  if hasattr(value, 'to_dict'):
    value = value.to_dict()
  if isinstance(value, Mapping):
    return {key: _plain(inner) for key, inner in value.items()}
  return value


def _find_config(typed):
  """Returns the file that `--config` names, with or without '.py'.

  A file wins over a shipped config of the same name, a name with '.py' left out
  does not.
  """
  path = pathlib.Path(typed)
  if path.is_file():
    return path
  shipped = SHIPPED / f'{path}.py'
  if shipped.parent == SHIPPED and str(path) in shipped_configs():
    return shipped
  if (own := pathlib.Path(f'{path}.py')).is_file():
    return own
  problem = 'is a directory' if path.is_dir() else 'does not exist'
  if path.name and not path.suffix:
    problem += f', nor is there {f"{path}.py"!r}'
  names = [str(other.with_suffix('')) for other in path.parent.glob('*.py')]
  names += shipped_configs()
  if near := difflib.get_close_matches(str(path), names, n=1):
    problem += f' (did you mean {near[0]!r}?)'
  raise UserError(
    '`--config` must name a file or a shipped config, but '
    f'{str(path)!r} {problem}. The shipped ones are '
    f'{", ".join(shipped_configs())}.'
  )


def _split_overrides(arguments):
  """Returns text by dotted name, and clauses on repeated or missing values."""
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


def _parse(text, annotation):
  """Returns the value that `text` spells, or `text` where it spells none."""
  choices = typing.get_args(annotation)
  if text.lower() == 'none' and {None, types.NoneType} & {*choices}:
    return None
  if typing.get_origin(annotation) is typing.Literal:
    return {str(choice): choice for choice in choices}.get(text, text)
  if isinstance(annotation, types.UnionType):
    annotation = choices[0]
  if annotation is bool:
    return {'true': True, 'false': False}.get(text.lower(), text)
  if annotation in (int, float):
    with contextlib.suppress(ValueError):
      return annotation(text)
  return text
