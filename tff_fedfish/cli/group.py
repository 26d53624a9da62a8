r"""Group a raw corpus into one record per web host, domain or author.

Examples:
  fedfish group c4 --input 'c4/c4-train.*.json.gz' --output corpora/c4
  fedfish group cc_news --input 'cc_news/*.parquet' --output corpora/cc_news \
      --key domain
  fedfish group stack_overflow --input stackoverflow.com-Posts.7z \
      --output corpora/stack_overflow --split_by source --num_shards 256

Options of Apache Beam are passed on, such as --runner; without one the job runs
in this process, with --direct_running_mode=multi_processing
--direct_num_workers=N in N of them.
"""

import argparse
from typing import Any

from tff_fedfish.errors import UserError

SUMMARY = 'group a raw corpus by web host, domain or author'
TAKES_EXTRA = True

_CLIENT_OPTIONS = ('held_out_fraction', 'validation_fraction', 'split_seed')
_INPUTS = {
  'c4': 'JSON lines, or a prepared TFDS directory; key: host',
  'cc_news': 'JSON lines, JSON documents or parquet; key: host',
  'stack_overflow': "Posts.xml or TFF's sqlite; key: author",
}


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
    'owner: the host, and on code hosts the owner: github.com/owner',
  )
  parser.add_argument(
    '--num_shards',
    type=int,
    default=8,
    metavar='N',
    help='TFRecord files to write; each must fit in memory three times '
    '(default: %(default)s)',
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
    '--drop_duplicates',
    action='store_true',
    help='keep only the first of the examples of a group with the same text',
  )
  parser.add_argument(
    '--strict',
    action='store_true',
    help='stop at the first record that cannot be used, instead of dropping '
    'and counting it',
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
  from pipelines.job import GroupJob
  from pipelines.source import load_source
  from pipelines.splits import SplitRule, split_names
  from tff_fedfish.cli import beam_options
  from tff_fedfish.cli.group_progress import show_progress

  _check_range('--num_shards', arguments.num_shards, 1, 99_999)
  # Protocol buffers cannot hold more than 2 GiB; leave room for the last one.
  for name in ('--max_record_bytes', '--max_document_bytes'):
    _check_range(name, getattr(arguments, name[2:]), 1, 1 << 30)
  if arguments.max_examples_per_group is not None:
    name = '--max_examples_per_group'
    _check_range(name, arguments.max_examples_per_group, 1, 1 << 62)
  source = load_source(arguments.corpus)
  split, num_splits = None, 1
  options = _split_options(arguments)
  if arguments.split_by is not None:
    split = SplitRule(kind=arguments.split_by, **options)
    num_splits = len(split_names(split, source))
  with beam_options.quiet_beam(arguments.extra):
    flags = beam_options.read_beam_flags(arguments)
    output = output_files.require_usable(arguments.output)

    from pipelines.input_files import find_input_files

    job = GroupJob(
      source_name=arguments.corpus,
      paths=tuple(find_input_files(arguments.input)),
      key=arguments.key or source.default_key,
      num_shards=arguments.num_shards,
      max_record_bytes=arguments.max_record_bytes,
      max_document_bytes=arguments.max_document_bytes,
      max_examples_per_group=arguments.max_examples_per_group,
      drop_duplicates=arguments.drop_duplicates,
      strict=arguments.strict,
      split=split,
    )

    from pipelines.group_job import run_group_job

    num_shards = job.num_shards * num_splits
    stagings = []

    def clean_up():
      for staging in stagings:
        output_files.remove(staging)

    with (
      beam_options.interruptible(clean_up),
      show_progress(len(job.paths), num_shards, job.key) as show,
    ):

      def watch(staging, num_tasks):
        stagings.append(staging)
        show(staging, num_tasks)

      manifests = run_group_job(job, output, flags, watch=watch)

  from tff_fedfish.cli.inspect import print_counts

  for manifest in manifests:
    directory = arguments.output
    if manifest.split is not None:
      directory = output_files.join(directory, manifest.split.name)
    print_counts(directory, manifest)
  return 0


def _split_options(arguments: argparse.Namespace) -> dict[str, Any]:
  """Returns what was said of a split; raises if it is about another kind."""
  kind_to_names = {'client': _CLIENT_OPTIONS, 'time': ('split_time',)}
  options = {}
  for kind, names in kind_to_names.items():
    for name in names:
      value = getattr(arguments, name)
      if value is None:
        continue
      if arguments.split_by != kind:
        raise UserError(
          f'`--{name}` goes with `--split_by {kind}`, but '
          + (
            f'`--split_by {arguments.split_by}` was given'
            if arguments.split_by
            else 'there is no `--split_by`'
          )
          + '. Leave one out, or name the other.'
        )
      options[name.replace('split_time', 'time')] = value
  return options


def _check_range(option: str, value: int, low: int, high: int) -> None:
  if not low <= value <= high:
    raise UserError(
      f'`{option}` must be from {low} to {high}, but is {value}. Name a '
      'number in that range.'
    )
