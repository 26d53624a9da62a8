"""Options from a dataclass, and suggestions for unknown options."""

import argparse
import dataclasses
import difflib
import typing
from collections.abc import Collection, Sequence
from typing import Any, Literal

_METAVARS = {int: 'N', float: 'X', str: 'TEXT'}


def add_options(
  parser: argparse.ArgumentParser,
  options_class: type,
  names: Collection[str] | None = None,
) -> None:
  """Adds an option for each field, with its name, type and default.

  The docstring of the field is the help.

  Args:
    parser: The parser of a command.
    options_class: A dataclass with fields of bool, int, float, str, optional
      ones of these, `Literal` and `tuple[float, ...]`. An optional int with a
      default takes `all` for None.
    names: Fields to add options for. None: all.
  """
  from tff_fedfish.fields import docs_of

  docs = docs_of(options_class)
  for field in dataclasses.fields(options_class):
    if names is not None and field.name not in names:
      continue
    text = docs[field.name].removesuffix('.').replace('%', '%%')
    text = text[0].lower() + text[1:]
    keywords = _keywords(field)
    if 'choices' in keywords:
      text = f'{", ".join(keywords["choices"])}: {text}'
    if field.type is not bool and field.default not in (None, ''):
      default = field.default
      if isinstance(default, tuple):
        default = ','.join(f'{number:g}' for number in default)
      text = f'{text} (default: {default})'
    parser.add_argument(
      f'--{field.name}', default=field.default, help=text, **keywords
    )


def read_options(arguments: argparse.Namespace, options_class: type) -> Any:
  """Returns the dataclass with the values of `add_options`.

  Raises:
    UserError: From the dataclass, if it refuses them.
  """
  names = [field.name for field in dataclasses.fields(options_class)]
  return options_class(**{name: getattr(arguments, name) for name in names})


def refuse_unknown(
  parser: argparse.ArgumentParser, unknown: Sequence[str], prefix: str = ''
) -> None:
  """Ends a command if there are arguments that its parser does not know.

  Names the nearest option; with the prefix '--config.' also settings.
  """
  if not unknown:
    return
  options, advice = [*_options(parser)], ''
  if prefix == '--config.':
    from tff_fedfish.config import names

    options += [f'{prefix}{name}' for name in names.fields_of(None)]
    advice = f'; settings are overridden as {prefix}section.setting=value'
  typed, *known = map(_bare, (unknown[0], *options))
  near = difflib.get_close_matches(typed, known, 1, 0.75)
  if named := [option for option in options if _bare(option) in near]:
    advice = f'; did you mean {" or ".join(named)}?'
  parser.error(f'unrecognized arguments: {" ".join(unknown)}{advice}')


def _options(parser):
  """Yields the options of a parser and of its actions."""
  for action in parser._actions:
    yield from action.option_strings
    if isinstance(action, argparse._SubParsersAction):
      for subparser in action.choices.values():
        yield from _options(subparser)


def _bare(option):
  """Returns the last part of an option, '--num-rounds=3' as 'num_rounds'."""
  name = option.partition('=')[0].rpartition('.')[2]
  return name.strip('-').replace('-', '_')


def _keywords(field):
  """Returns the keywords of `add_argument` that follow from a field's type."""
  if field.type is bool:
    return {'action': 'store_true'}
  if field.metadata.get('is_path'):
    return {'metavar': 'DIR'}
  if field.type == tuple[float, ...]:
    return {'type': _numbers, 'metavar': 'X,X,...'}
  parts = typing.get_args(field.type)
  if typing.get_origin(field.type) is Literal:
    choices = [choice for choice in parts if choice is not None]
    return {'choices': choices, 'metavar': 'NAME'}
  value_type = parts[0] if parts else field.type
  if value_type is int and parts and field.default is not None:
    return {'type': _int_or_all, 'metavar': 'N|all'}
  return {'type': value_type, 'metavar': _METAVARS[value_type]}


def _int_or_all(text: str) -> int | None:
  """Returns a bound; None, which lifts it, for 'all'."""
  try:
    return None if text == 'all' else int(text)
  except ValueError as error:
    raise argparse.ArgumentTypeError(
      f'must be a whole number or all, found {text!r}'
    ) from error


def _numbers(text: str) -> tuple[float, ...]:
  try:
    return tuple(float(part) for part in text.split(','))
  except ValueError as error:
    raise argparse.ArgumentTypeError(
      f'must be numbers separated by commas, found {text!r}'
    ) from error
