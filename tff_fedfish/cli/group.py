r"""Group a raw corpus into one record per host, domain, author or any field.

Examples:
  fedfish group c4 --output corpora/debian \
      --input 'tff_fedfish/corpora/debian_descriptions/*.json.gz'
  fedfish group cc_news --input 'cc_news/*.parquet' --output corpora/cc_news \
      --key domain
  fedfish group stack_overflow --input stackoverflow.com-Posts.xml.gz \
      --output corpora/stack_overflow --split_by source --num_shards 256
  fedfish group json_lines --input 'posts/*.jsonl.gz' --output corpora/posts \
      --key_field user.name --text_field body --time_field created
  fedfish group json_lines --input 'RC_2020-*.zst' --output corpora/reddit \
      --key_field author --text_field body --max_window_log 31
  fedfish group json_lines --input 'posts/*.jsonl.gz' --output corpora/posts \
      --key_function my_module.key --filter my_module.keep --text_field body

Options of Apache Beam are passed on, such as --runner; without one the job runs
in this process, with --direct_running_mode=multi_processing
--direct_num_workers=N in N of them.
"""

import argparse
import sys
import time
from typing import TYPE_CHECKING

from tff_fedfish.cli.group_options import add_arguments, build_job

if TYPE_CHECKING:
  from pipelines.disk import DiskEstimate

__all__ = ['SUMMARY', 'TAKES_EXTRA', 'add_arguments', 'run']
SUMMARY = 'group a raw corpus by web host, domain, author or any field'
TAKES_EXTRA = '--'
# Of input, for which what it takes of the disk is said.
_NOTABLE_BYTES = 1 << 30


def run(arguments: argparse.Namespace) -> int:
  """Groups the corpus and prints what came in, what came out, and what not."""
  from pipelines import output as outputs
  from tff_fedfish.cli import beam_job
  from tff_fedfish.cli.inspect import print_counts
  from tff_fedfish.data import places
  from tff_fedfish.printing import count, format_bytes

  with beam_job.quiet_beam(arguments.extra):
    flags = beam_job.read_beam_flags(arguments)
    job = build_job(arguments)
    output = outputs.require_usable(arguments.output)
    for path in outputs.find_work(output):
      print(
        f'fedfish: note: {path!r} is of a job for this output. If none is '
        'running, `--resume` goes on with an equal one, or remove it.',
        file=sys.stderr,
      )

    from pipelines import disk, reports
    from pipelines.job import run_group_job

    directories, num_bytes = [], 0

    def clean_up():
      for directory in directories:
        if reports.find_tasks(directory):
          kept = outputs.kept_words(directory)
          print(f'fedfish: {kept}.', file=sys.stderr)
        else:
          places.remove_directory(directory)

    with beam_job.interruptible(clean_up):
      if job.fields is not None:
        from pipelines.check_fields import require_fields

        require_fields(
          job.fields, job.paths, job.max_document_bytes, job.max_window_log
        )
      start, num_shards = time.monotonic(), job.num_all_shards()
      title = (
        f'Grouping {count(len(job.paths), "file")} by {job.key} into '
        f'{count(num_shards, "shard")}'
      )
      with beam_job.show_progress(title, num_shards) as show:

        def watch(directory, sizes):
          nonlocal num_bytes
          directories.append(directory)
          num_bytes = sum(sizes)
          if num_bytes >= _NOTABLE_BYTES:
            _print_disk(disk.estimate(job.paths, num_bytes, output))
          show(directory, sizes)

        manifests = run_group_job(
          job, output, flags, resume=arguments.resume, watch=watch
        )
  seconds = time.monotonic() - start
  rate = format_bytes(round(num_bytes / seconds))
  line = f'Grouped in {seconds:,.1f} s, {rate} of input per second.'
  print(line, file=sys.stderr)
  for manifest in manifests:
    directory = arguments.output
    if manifest.split is not None:
      directory = f'{directory.rstrip("/")}/{manifest.split.name}'
    print_counts(directory, manifest)
  return 0


def _print_disk(found: 'DiskEstimate') -> None:
  from tff_fedfish.printing import format_bytes

  free = 'a store'
  if found.num_free_bytes is not None:
    free = f'{format_bytes(found.num_free_bytes)} free'
  line = (
    f'{format_bytes(found.num_input_bytes)} of input; on disk some '
    f'{format_bytes(found.num_shard_bytes)} of shards and, until the end, '
    f'{format_bytes(found.num_run_bytes)} of sorted rows ({free})'
  )
  prefix = 'fedfish: warning: ' if found.is_too_much else ''
  print(f'{prefix}{line}', file=sys.stderr)
