r"""Group a raw corpus into one record per host, domain, author or any field.

Examples:
  fedfish group c4 --input 'c4/c4-train.*.json.gz' --output corpora/c4
  fedfish group cc_news --input 'cc_news/*.parquet' --output corpora/cc_news \
      --key domain
  fedfish group stack_overflow --input stackoverflow.com-Posts.7z \
      --output corpora/stack_overflow --split_by source --num_shards 256
  fedfish group json_lines --input 'posts/*.jsonl.gz' --output corpora/posts \
      --key_field user.name --text_field body --time_field created

Options of Apache Beam are passed on, such as --runner; without one the job runs
in this process, with --direct_running_mode=multi_processing
--direct_num_workers=N in N of them.
"""

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from tff_fedfish.errors import UserError

if TYPE_CHECKING:
  from pipelines.job import GroupJob
  from pipelines.source import Fields

SUMMARY = 'group a raw corpus by web host, domain, author or any field'
TAKES_EXTRA = True

_JOB_OPTIONS = (
  *('num_shards', 'max_record_bytes', 'max_document_bytes'),
  *('max_examples_per_group', 'min_examples_per_group', 'drop_duplicates'),
  *('drop_duplicates_across_groups', 'strict'),
)
_CLIENT_OPTIONS = ('held_out_fraction', 'validation_fraction', 'split_seed')
_INPUTS = {
  'c4': 'JSON lines, or a prepared TFDS directory; key: host',
  'cc_news': 'JSON lines, JSON documents or parquet; key: host',
  'stack_overflow': "Posts.xml or TFF's sqlite; key: author",
  'json_lines': 'JSON lines or parquet with any fields; key: --key_field',
}
_FIELD_OPTIONS = {
  'key_field': 'what the examples of a group share: text, or an integer',
  'text_field': 'the text of an example',
  'time_field': 'when it was written; the order of the examples of a group '
  '(default: none, and no feature timestamp)',
}
_MAX_NAME_CHARACTERS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish group`."""
  # Light modules: neither imports Beam.
  from pipelines.job import DEFAULT_MAX_DOCUMENT_BYTES
  from pipelines.keys import KEYS
  from pipelines.source import SOURCE_NAMES
  from pipelines.splits import SPLIT_KINDS, SplitRule

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
    help='raw files or quoted patterns, local or of a file system that Beam '
    'knows; plain, gzip, bzip2, xz or 7z, told from their first bytes',
  )
  parser.add_argument(
    '--output', required=True, metavar='DIR', help='new or empty directory'
  )
  parser.add_argument(
    '--key',
    choices=tuple(KEYS),
    help="what the examples of a group share (default: the corpus's own); "
    'owner: the host, and on code hosts the owner: github.com/owner; author: '
    'the field "author" of each record as it is written, on Stack Overflow the '
    "user's number; for any other field, see json_lines",
  )
  parser.add_argument(
    '--num_shards',
    type=int,
    default=8,
    metavar='N',
    help='TFRecord files to write; no more workers write (default: '
    '%(default)s)',
  )
  parser.add_argument(
    '--max_record_bytes',
    type=int,
    default=256 << 20,
    metavar='BYTES',
    help='store a larger group in several records (default: 256 MiB)',
  )
  parser.add_argument(
    '--max_document_bytes',
    type=int,
    default=DEFAULT_MAX_DOCUMENT_BYTES,
    metavar='BYTES',
    help='drop longer texts (default: 64 MiB)',
  )
  parser.add_argument(
    '--max_examples_per_group',
    type=int,
    metavar='N',
    help='of larger groups keep N examples, chosen by hash (default: all)',
  )
  parser.add_argument(
    '--min_examples_per_group',
    type=int,
    metavar='N',
    help='drop smaller groups, counted without duplicates (default: keep all)',
  )
  parser.add_argument(
    '--drop_duplicates',
    action='store_true',
    help='keep only the first of the examples of a group with the same text',
  )
  parser.add_argument(
    '--drop_duplicates_across_groups',
    action='store_true',
    help='keep only one of the examples of all groups with the same text, the '
    'earliest; shuffles the corpus twice',
  )
  parser.add_argument(
    '--strict',
    action='store_true',
    help='stop at the first record that cannot be used, instead of dropping '
    'and counting it',
  )
  parser.add_argument(
    '--write_dropped',
    metavar='DIR',
    help='write the records that are dropped while files are read, with their '
    'reasons, to a new local directory',
  )
  parser.add_argument(
    '--max_dropped_bytes',
    type=int,
    metavar='BYTES',
    help='how much to write there, before compression (default: 1 GiB)',
  )
  parser.add_argument(
    '--add_to',
    metavar='DIR',
    help='a corpus that was grouped with the same options, whose examples are '
    'stored in the output, too',
  )
  fields = parser.add_argument_group(
    'json_lines', 'fields, where user.name is the field name inside user'
  )
  for name, help_text in _FIELD_OPTIONS.items():
    fields.add_argument(f'--{name}', metavar='FIELD', help=help_text)
  fields.add_argument(
    '--name', help="the corpus' name (default: the last part of --output)"
  )
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
  default = SplitRule(kind='client')
  for name in _CLIENT_OPTIONS:
    value = getattr(default, name)
    splits.add_argument(
      f'--{name}',
      type=type(value),
      metavar=name.rpartition('_')[2].upper(),
      help=f'by client (default: {value})',
    )


def run(arguments: argparse.Namespace) -> int:
  """Groups the corpus and prints what came in, what came out, and what not."""
  from pipelines import output_files
  from tff_fedfish.cli import beam_job
  from tff_fedfish.cli.inspect import print_counts
  from tff_fedfish.printing import count

  with beam_job.quiet_beam(arguments.extra):
    flags = beam_job.read_beam_flags(arguments)
    job = build_job(arguments)
    output = output_files.require_usable(arguments.output)

    from pipelines.group_job import run_group_job

    stagings = []

    def clean_up():
      for staging in stagings:
        output_files.remove(staging)

    with beam_job.interruptible(clean_up):
      if job.fields is not None:
        from pipelines.json_lines import require_fields

        require_fields(job.fields, job.paths, job.max_document_bytes)
      num_shards = job.num_all_shards()
      title = (
        f'Grouping {count(len(job.paths), "file")} by {job.key} into '
        f'{count(num_shards, "shard")}'
      )
      with beam_job.show_progress(title, num_shards) as show:

        def watch(staging, num_tasks):
          stagings.append(staging)
          show(staging, num_tasks)

        manifests = run_group_job(job, output, flags, watch=watch)
  for manifest in manifests:
    directory = arguments.output
    if manifest.split is not None:
      directory = f'{directory.rstrip("/")}/{manifest.split.name}'
    print_counts(directory, manifest)
  return 0


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
  options = _dropped_options(arguments)
  fields = _fields(arguments)
  name = None if fields is None else _name(arguments)
  source = load_source(arguments.corpus, fields)
  split, split_options = None, _split_options(arguments)
  if arguments.split_by is not None:
    split = SplitRule(kind=arguments.split_by, **split_options)
    # Raises if the source has no such split.
    split_names(split, source)
  job = GroupJob(
    source_name=arguments.corpus,
    paths=tuple(find_input_files(arguments.input)),
    key=arguments.key or source.default_key,
    split=split,
    fields=fields,
    name=name,
    add_to=arguments.add_to and _absolute(arguments.add_to),
    **options,
    **{option: getattr(arguments, option) for option in _JOB_OPTIONS},
  )
  if job.add_to:
    from pipelines.add_to import read_manifests

    earlier, *_ = read_manifests(job)
    if fields is not None and arguments.name is None:
      # A corpus that grows stays the same.
      job = dataclasses.replace(job, name=earlier.corpus)
  return job


def _check_ranges(arguments: argparse.Namespace) -> None:
  highest = {
    'num_shards': 99_999,
    # Protocol buffers cannot hold more than 2 GiB; leave room for the last one.
    'max_record_bytes': 1 << 30,
    'max_document_bytes': 1 << 30,
    'max_examples_per_group': 1 << 62,
    'min_examples_per_group': 1 << 62,
    'max_dropped_bytes': 1 << 62,
  }
  for name, high in highest.items():
    value = getattr(arguments, name)
    if value is not None and not 1 <= value <= high:
      raise UserError(
        f'`--{name}` must be from 1 to {high}, but is {value}. Name a number '
        'in that range.'
      )

  least = arguments.min_examples_per_group
  most = arguments.max_examples_per_group
  if least and most and least > most:
    raise UserError(
      '`--min_examples_per_group` must be at most `--max_examples_per_group`, '
      f'but is {least}, and that {most}. Lower the one, or raise the other.'
    )


def _dropped_options(arguments: argparse.Namespace) -> dict[str, Any]:
  """Returns where to write dropped records, and how many bytes of them."""
  from tff_fedfish.files import require_usable_output

  directory, limit = arguments.write_dropped, arguments.max_dropped_bytes
  if directory is None:
    if limit is not None:
      raise UserError(
        '`--max_dropped_bytes` goes with `--write_dropped`, but there is none. '
        'Leave it out, or name a directory.'
      )
    return {}
  paths = [os.path.realpath(path) for path in (directory, arguments.output)]
  if '://' in directory or os.path.commonpath(paths) in paths:
    raise UserError(
      '`--write_dropped` must be a local directory beside `--output`, but is '
      f'{directory!r}. Name another one.'
    )
  require_usable_output(directory, '--write_dropped')
  options = {'write_dropped': paths[0]}
  return options if limit is None else options | {'max_dropped_bytes': limit}


def _split_options(arguments: argparse.Namespace) -> dict[str, Any]:
  """Returns what was said of a split; raises if it is about another kind."""
  kinds = dict.fromkeys(_CLIENT_OPTIONS, 'client') | {'split_time': 'time'}
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

  given = {name: getattr(arguments, name) for name in _FIELD_OPTIONS}
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
        f'`--{name}` is required with json_lines: {_FIELD_OPTIONS[name]}. Name '
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
    name = _absolute(arguments.output.rstrip('/')).rpartition('/')[2]
  if not (0 < len(name) <= _MAX_NAME_CHARACTERS and name.isprintable()):
    raise UserError(
      f'`--name` must be 1 to {_MAX_NAME_CHARACTERS} printable characters, but '
      f'is {name!r}{", as `--output` ends" * (arguments.name is None)}. Name '
      'another.'
    )
  return name


def _absolute(path: str) -> str:
  from pipelines.remote_files import is_remote

  return path if is_remote(path) else os.path.abspath(path)
