"""Turns the arguments of `fedfish group` into a job, or refuses them."""

import argparse
import os
from typing import TYPE_CHECKING, Any

from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  from pipelines.job import GroupJob
  from pipelines.source import Fields

FIELD_OPTIONS = {
  'key_field': 'what the examples of a group share: text, or an integer',
  'text_field': 'the text of an example',
  'time_field': 'when it was written, which sorts the examples of a group: '
  'numbers by value, ISO 8601 by moment (default: none, no feature timestamp)',
}
"""Options of json_lines that name a field -> their help."""

CLIENT_OPTIONS = ('held_out_fraction', 'validation_fraction', 'split_seed')
"""Options of `--split_by client`."""

_JOB_OPTIONS = (
  *('num_shards', 'max_record_bytes', 'max_document_bytes'),
  *('max_examples_per_group', 'min_examples_per_group', 'drop_duplicates'),
  'strict',
)
_MAX_NAME_CHARACTERS = 100


def build_job(arguments: argparse.Namespace) -> 'GroupJob':
  """Returns the job that the arguments of `fedfish group` describe.

  Raises:
    UserError: If they do not go together, or a file is not there.
  """
  from pipelines.input_files import find_input_files
  from pipelines.job import GroupJob
  from pipelines.source import load_source
  from pipelines.splits import SplitRule, split_names

  _check_ranges(arguments)
  if not arguments.output:
    raise UserError(
      "`--output` must be the name of a directory, but is ''. Name one."
    )
  fields = _fields(arguments)
  name = None if fields is None else _name(arguments)
  source = load_source(arguments.corpus, fields)
  split, split_options = None, _split_options(arguments)
  if arguments.split_by is not None:
    split = SplitRule(kind=arguments.split_by, **split_options)
  paths = tuple(find_input_files(arguments.input))
  if split is not None:
    # Raises if the source has no such split, or a file's name does not tell it.
    split_names(split, source, paths)
  return GroupJob(
    source_name=arguments.corpus,
    paths=paths,
    key=arguments.key or source.default_key,
    split=split,
    fields=fields,
    name=name,
    **{option: getattr(arguments, option) for option in _JOB_OPTIONS},
  )


def _check_ranges(arguments: argparse.Namespace) -> None:
  from tff_fedfish.data.manifest import RANGES

  ranges = RANGES | {'num_shards': (1, 99_999)}
  for name, (low, high) in ranges.items():
    value = getattr(arguments, name)
    if value is not None and not low <= value <= high:
      raise UserError(
        f'`--{name}` must be from {low} to {high}, but is {value}. Name a '
        'number in that range.'
      )

  least = arguments.min_examples_per_group
  most = arguments.max_examples_per_group
  if least and most and least > most:
    raise UserError(
      '`--min_examples_per_group` must be at most `--max_examples_per_group`, '
      f'but is {least}, and that {most}. Lower the one, or raise the other.'
    )


def _split_options(arguments: argparse.Namespace) -> dict[str, Any]:
  """Returns what was said of a split; raises if it is about another kind."""
  kinds = dict.fromkeys(CLIENT_OPTIONS, 'client') | {'split_time': 'time'}
  options = {}
  for name, kind in kinds.items():
    value = getattr(arguments, name)
    if value is not None:
      if arguments.split_by != kind:
        found = 'there is no `--split_by`'
        if arguments.split_by:
          found = f'`--split_by {arguments.split_by}` was given'
        raise UserError(
          f'`--{name}` goes with `--split_by {kind}`, but {found}. Leave one '
          'out, or name the other.'
        )
      options[name.replace('split_time', 'time')] = value
  return options


def _fields(arguments: argparse.Namespace) -> 'Fields | None':
  """Returns what json_lines reads; None for another corpus.

  Raises:
    UserError: If an option does not go with the corpus, or lacks.
  """
  from pipelines.source import Fields

  given = {name: getattr(arguments, name) for name in FIELD_OPTIONS}
  if arguments.corpus != 'json_lines':
    for name, value in (given | {'name': arguments.name}).items():
      if value is not None:
        raise UserError(
          f'`--{name}` goes with json_lines, but the corpus is '
          f'{arguments.corpus}. Leave it out, or use `fedfish group '
          'json_lines`.'
        )
    return None
  if arguments.key is not None:
    raise UserError(
      '`--key` goes with corpora whose fields are known, but json_lines has '
      f'any, and `--key {arguments.key}` was given. Name the field instead, '
      'such as `--key_field user.name`.'
    )
  for name, path in given.items():
    if path is None and name != 'time_field':
      raise UserError(
        f'`--{name}` is required with json_lines: {FIELD_OPTIONS[name]}. Name '
        f'a field, such as `--{name} '
        f'{"user.name" if name == "key_field" else "text"}`.'
      )
    if path is not None and not (path.strip() and path.isprintable()):
      raise UserError(
        f'`--{name}` must be the name of a field, or a path such as user.name, '
        f'but is {path!r}. Name a field.'
      )
  if arguments.split_by == 'time' and arguments.time_field is None:
    raise UserError(
      '`--split_by time` needs `--time_field` with json_lines, but there is '
      'none. Name the field with the time, or split by client.'
    )
  return Fields(
    **{name[: -len('_field')]: path for name, path in given.items()}
  )


def _name(arguments: argparse.Namespace) -> str:
  """Returns the name that the corpus gets."""
  name = arguments.name
  if name is None:
    name = os.path.abspath(arguments.output.rstrip('/')).rpartition('/')[2]
  if not (0 < len(name) <= _MAX_NAME_CHARACTERS and name.isprintable()):
    raise UserError(
      f'`--name` must be 1 to {_MAX_NAME_CHARACTERS} printable characters, but '
      f'is {name!r}{", as `--output` ends" * (arguments.name is None)}. Name '
      'another.'
    )
  return name
