r"""Group a raw corpus into one record per host, domain, author or any field.

Examples:
  fedfish group c4 --input 'c4/c4-train.*.json.gz' --output corpora/c4
  fedfish group cc_news --input 'cc_news/*.parquet' --output corpora/cc_news \
      --key domain
  fedfish group stack_overflow --input stackoverflow.com-Posts.xml.gz \
      --output corpora/stack_overflow --split_by source --num_shards 256
  fedfish group json_lines --input 'posts/*.jsonl.gz' --output corpora/posts \
      --key_field user.name --text_field body --time_field created

Options of Apache Beam are passed on, such as --runner; without one the job runs
in this process, with --direct_running_mode=multi_processing
--direct_num_workers=N in N of them.
"""

import argparse
import sys

from tff_fedfish.cli.group_options import (
  CLIENT_OPTIONS,
  FIELD_OPTIONS,
  build_job,
)

SUMMARY = 'group a raw corpus by web host, domain, author or any field'
TAKES_EXTRA = True

_INPUTS = {
  'c4': 'JSON lines, parquet, or TFRecord files of TFDS; key: host',
  'cc_news': 'JSON lines, JSON documents or parquet; key: host',
  'stack_overflow': "Posts.xml or TFF's sqlite; key: author",
  'json_lines': 'JSON lines or parquet with any fields; key: --key_field',
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
    help='raw files or quoted patterns, local or s3://, gs://, abfs://; '
    'plain, gzip, bzip2 or xz, told from their first bytes',
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
    '--strict',
    action='store_true',
    help='stop at the first record that cannot be used, instead of dropping '
    'and counting it',
  )
  fields = parser.add_argument_group(
    'json_lines', 'fields, where user.name is the field name inside user'
  )
  for name, help_text in FIELD_OPTIONS.items():
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
  for name in CLIENT_OPTIONS:
    value = getattr(default, name)
    splits.add_argument(
      f'--{name}',
      type=type(value),
      metavar=name.rpartition('_')[2].upper(),
      help=f'by client (default: {value})',
    )


def run(arguments: argparse.Namespace) -> int:
  """Groups the corpus and prints what came in, what came out, and what not."""
  from pipelines.output import find_work, require_usable
  from tff_fedfish.cli import beam_job
  from tff_fedfish.cli.inspect import print_counts
  from tff_fedfish.data import places
  from tff_fedfish.printing import count

  with beam_job.quiet_beam(arguments.extra):
    flags = beam_job.read_beam_flags(arguments)
    job = build_job(arguments)
    output = require_usable(arguments.output)
    for path in find_work(output):
      print(
        f'fedfish: note: {path!r} is of another job for this output. If none '
        'is running, remove it.',
        file=sys.stderr,
      )

    from pipelines.group_job import run_group_job

    stagings = []

    def clean_up():
      for staging in stagings:
        places.remove_directory(staging)

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
