"""Arguments of `fedfish group`, and the job that they describe."""

import argparse
import os
from typing import TYPE_CHECKING

from tff_fedfish.cli.options import add_options
from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  from pipelines.options import GroupJob

_INPUTS = {
  'c4': 'JSON lines, parquet, or TFRecord files of TFDS; key: host',
  'cc_news': 'JSON lines, an object to a file, or parquet; key: host',
  'stack_overflow': "Posts.xml or TFF's sqlite; key: author",
  'json_lines': 'JSON lines or parquet with any fields; key: --key_field',
}
_FIELDS = {
  'key_field': 'what the examples of a group share: text, or an integer; '
  'several are a key together, such as --key_field site --key_field author',
  'text_field': 'the text of an example',
  'time_field': 'when it was written, which sorts the examples of a group: '
  'numbers by value, ISO 8601 by moment (default: none, no feature timestamp)',
  'keep_field': 'a further field to store with each example, as a feature of '
  'that name, such as --keep_field score --keep_field lang: text as it is, '
  'others as JSON',
}
_JSON_LINES = (*_FIELDS, 'name')
_CLIENT_SPLIT = ('held_out_fraction', 'validation_fraction', 'split_seed')
_SHAPE = (
  *('num_shards', 'max_record_bytes', 'max_document_bytes', 'max_window_log'),
  *('min_examples_per_group', 'drop_duplicates', 'strict'),
)
_OWN = ('key_function', 'filter')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish group`."""
  # Light modules: neither imports Beam.
  from pipelines.keys import KEYS
  from pipelines.options import GroupJob
  from pipelines.source import SOURCE_NAMES

  parser.add_argument(
    'corpus',
    choices=SOURCE_NAMES,
    help='what the input files are: '
    + '; '.join(f'{name} ({_INPUTS[name]})' for name in SOURCE_NAMES),
  )
  parser.add_argument(
    '--input',
    required=True,
    nargs='+',
    metavar='GLOB',
    help='raw files or quoted patterns, local or of a store, such as s3://; '
    'plain, gzip, zstd, bzip2 or xz, told from their first bytes',
  )
  parser.add_argument(
    '--output', required=True, metavar='DIR', help='new or empty directory'
  )
  parser.add_argument(
    '--resume',
    action='store_true',
    help='go on with what an equal job has left in the output, if there is one',
  )
  parser.add_argument(
    '--key',
    type=_key,
    metavar=f'{{{",".join(KEYS)}}}',
    help="what the examples of a group share (default: the corpus's own); "
    'owner: the host, and on code hosts the owner: github.com/owner; author: '
    'the field "author" of each record as it is written, on Stack Overflow the '
    "user's number; for any other field, see json_lines",
  )
  add_options(parser, GroupJob, _SHAPE)
  fields = parser.add_argument_group(
    'json_lines', 'fields, where user.name is the field name inside user'
  )
  for name, help_text in _FIELDS.items():
    action = 'append' if name in ('key_field', 'keep_field') else None
    fields.add_argument(
      f'--{name}', metavar='FIELD', action=action, help=help_text
    )
  fields.add_argument(
    '--name', help="the corpus' name (default: the last part of --output)"
  )
  own = parser.add_argument_group(
    'functions of your own',
    'each takes a record as a dict; modules in this directory or on PYTHONPATH',
  )
  add_options(own, GroupJob, _OWN)
  _add_splits(parser)


def _key(text: str) -> str:
  from pipelines.keys import KEYS

  if text not in KEYS:
    raise argparse.ArgumentTypeError(
      f'must be one of {", ".join(KEYS)}, found {text!r}; --key_field names a '
      'field of json_lines'
    )
  return text


def _add_splits(parser: argparse.ArgumentParser) -> None:
  from pipelines.splits import SPLIT_KINDS, SplitRule

  splits = parser.add_argument_group(
    'splits', 'write a grouped corpus for every part, in DIR/train and so on'
  )
  splits.add_argument(
    '--split_by',
    choices=SPLIT_KINDS,
    help="the corpus's own split, a hash of the group, or a moment",
  )
  splits.add_argument(
    '--split_time',
    metavar='TIME',
    help='by time: earlier examples are train, others test; such as 2018-01-01',
  )
  for name in _CLIENT_SPLIT:
    value = getattr(SplitRule, name)
    splits.add_argument(
      f'--{name}',
      type=type(value),
      metavar=name.rpartition('_')[2].upper(),
      help=f'by client (default: {value})',
    )


def build_job(arguments: argparse.Namespace) -> 'GroupJob':
  """Returns the job that the arguments of `fedfish group` describe.

  Raises:
    UserError: If they do not go together, or a file is not there.
  """
  from pipelines.input_files import find_input_files
  from pipelines.options import GroupJob
  from pipelines.source import Fields, load_source
  from pipelines.splits import SplitRule

  if not arguments.output:
    raise UserError(
      "`--output` must be the name of a directory, but is ''. Name one."
    )
  _check_together(arguments)
  fields, name = None, arguments.name
  if arguments.corpus == 'json_lines':
    fields = Fields(
      key=tuple(arguments.key_field or ()),
      text=arguments.text_field,
      time=arguments.time_field,
      keep=tuple(arguments.keep_field or ()),
    )
    # '' is refused by the job.
    if name is None:
      name = os.path.abspath(arguments.output.rstrip('/')).rpartition('/')[2]
  split = None
  if arguments.split_by:
    values = {option: getattr(arguments, option) for option in _CLIENT_SPLIT}
    values['time'] = arguments.split_time
    given = {option: v for option, v in values.items() if v is not None}
    split = SplitRule(kind=arguments.split_by, **given)
  source = load_source(arguments.corpus, fields)
  return GroupJob(
    source_name=arguments.corpus,
    paths=tuple(find_input_files(arguments.input)),
    key=arguments.key_function or arguments.key or source.default_key,
    split=split,
    fields=fields,
    name=name,
    **{option: getattr(arguments, option) for option in (*_SHAPE, *_OWN)},
  )


def _check_together(arguments: argparse.Namespace) -> None:
  """Raises if an option goes with something that was not given."""
  corpus, split_by = arguments.corpus, arguments.split_by
  is_any = corpus == 'json_lines'
  for names, owner, is_given in (
    (_JSON_LINES, 'json_lines', is_any),
    (('key',), 'other corpora; json_lines has `--key_field`', not is_any),
    (_CLIENT_SPLIT, '`--split_by client`', split_by == 'client'),
    (('split_time',), '`--split_by time`', split_by == 'time'),
  ):
    for name in names:
      if getattr(arguments, name) is not None and not is_given:
        raise UserError(
          f'`--{name}` goes with {owner}, found {corpus} and `--split_by` '
          f'{split_by}. Leave it out.'
        )
  if arguments.key_function is not None:
    for name in ('key', 'key_field'):
      if getattr(arguments, name) is not None:
        raise UserError(
          f'`--{name}` must not be given with `--key_function`, which returns '
          'the key. Leave one of them out.'
        )
  required = ['text_field']
  if arguments.key_function is None:
    required.insert(0, 'key_field')
  for name in required:
    if is_any and getattr(arguments, name) is None:
      raise UserError(
        f'`--{name}` is required with json_lines: '
        f'{_FIELDS[name].partition(";")[0]}. Name a field, such as user.name.'
      )
