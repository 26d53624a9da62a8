"""Group a raw corpus into one record per web host, domain or author.

Example:
  fedfish group c4 --input 'c4/c4-train.*.json.gz' --output corpora/c4

Options of Apache Beam are passed on, such as --runner; without one the job runs
in this process.
"""

import argparse
import contextlib
import logging
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator

from tff_fedfish.errors import UserError
from tff_fedfish.files import require_usable_output

SUMMARY = 'group a raw corpus by web host, domain or author'
TAKES_EXTRA = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `fedfish group`."""
  # Light modules: neither imports Beam.
  from pipelines.keys import KEYS
  from pipelines.source import SOURCE_NAMES

  parser.add_argument(
    'corpus', choices=SOURCE_NAMES, help='what the input files are'
  )
  parser.add_argument(
    '--input',
    required=True,
    nargs='+',
    metavar='GLOB',
    help='raw files or quoted patterns (C4: JSON lines, plain or gzip)',
  )
  parser.add_argument(
    '--output', required=True, metavar='DIR', help='new or empty directory'
  )
  parser.add_argument(
    '--key',
    choices=tuple(KEYS),
    help="what the examples of a group share (default: the corpus's own; "
    'C4: host)',
  )
  parser.add_argument(
    '--num_shards',
    type=int,
    default=8,
    metavar='N',
    help='TFRecord files to write (default: %(default)s)',
  )
  parser.add_argument(
    '--max_record_bytes',
    type=int,
    default=256 << 20,
    metavar='BYTES',
    help='store a larger group in several records (default: 256 MiB)',
  )


def run(arguments: argparse.Namespace) -> int:
  """Groups the corpus and prints what came in, what came out, and what not."""
  _check_range('--num_shards', arguments.num_shards, 1, 99_999)
  # Protocol buffers cannot hold more than 2 GiB; leave room for the last one.
  _check_range('--max_record_bytes', arguments.max_record_bytes, 1, 1 << 30)
  output = _local_output(arguments.output)
  with _quiet_beam():
    from pipelines.input_files import find_input_files

    flags = _beam_flags(arguments)
    paths = find_input_files(arguments.input)

    from pipelines.group_job import run_group_job
    from pipelines.job import GroupJob
    from pipelines.source import load_source

    job = GroupJob(
      source_name=arguments.corpus,
      paths=tuple(paths),
      key=arguments.key or load_source(arguments.corpus).default_key,
      num_shards=arguments.num_shards,
      max_record_bytes=arguments.max_record_bytes,
    )
    with _interruptible(), _progress(job, output):
      manifest = run_group_job(job, output, flags)

  from tff_fedfish.cli.inspect import print_counts

  print_counts(arguments.output, manifest)
  return 0


def _check_range(option: str, value: int, low: int, high: int) -> None:
  if not low <= value <= high:
    raise UserError(
      f'`{option}` must be from {low} to {high}, but is {value}. Name a '
      'number in that range.'
    )


def _local_output(output: str) -> pathlib.Path:
  if '://' in output:
    raise UserError(
      f'`--output` must be a local directory, but is {output!r}. Group into a '
      'local directory, then copy it there.'
    )
  # Resolved, because `.` or a link cannot be replaced by a directory.
  return require_usable_output(output, '--output').resolve()


def _beam_flags(arguments: argparse.Namespace) -> list[str]:
  """Returns the extra arguments if Beam knows all of them."""
  flags = list(arguments.extra)
  if not flags:
    return flags
  from apache_beam.options.pipeline_options import PipelineOptions
  from apache_beam.runners.runner import create_runner

  # The callback is how Beam hands out the parser of all its options.
  parsers = []
  PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
  parsers[0].error = arguments.parser.error
  known, unknown = parsers[0].parse_known_args(flags)
  if unknown:
    arguments.parser.error(f'unrecognized arguments: {" ".join(unknown)}')
  if known.runner is not None:
    try:
      create_runner(known.runner)
    except (ValueError, ImportError, AttributeError) as error:
      raise UserError(
        f'`--runner` must name a Beam runner, but is {known.runner!r} '
        f'({" ".join(str(error).split())}). Leave it out to run in this '
        'process.'
      ) from error
  return flags


@contextlib.contextmanager
def _quiet_beam() -> Iterator[None]:
  """Keeps Beam's log from the screen: its errors come as exceptions anyway."""
  previous = logging.root.manager.disable
  logging.disable(logging.ERROR)
  try:
    yield
  finally:
    logging.disable(previous)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
  """Lets Ctrl-C and SIGTERM through Beam, which wraps every exception."""
  received = []

  def stop(signal_num, frame):
    del frame
    received.append(signal_num)
    raise KeyboardInterrupt

  previous = {
    signal_num: signal.signal(signal_num, stop)
    for signal_num in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    yield
  except BaseException:
    if not received:
      raise
    what = 'interrupted' if received[0] == signal.SIGINT else 'terminated'
    print(f'fedfish: {what}.', file=sys.stderr, flush=True)
    # Everything is cleaned up by now. A usual exit would wait for threads that
    # Beam, torn from its work, has no means to stop any more.
    os._exit(128 + received[0])
  finally:
    for signal_num, handler in previous.items():
      signal.signal(signal_num, handler)


@contextlib.contextmanager
def _progress(job, output: pathlib.Path) -> Iterator[None]:
  """Shows how far the job is: a moving line on a terminal, else one line."""
  import rich.console
  import rich.progress

  from pipelines import finish_corpus

  console = rich.console.Console(stderr=True)
  total = len(job.paths), job.num_shards
  title = (
    f'Grouping {_number(total[0], "file")} by {job.key} into '
    f'{_number(total[1], "shard")}'
  )
  if not console.is_terminal:
    console.print(title, soft_wrap=True, highlight=False)
    yield
    return
  columns = rich.progress.SpinnerColumn(), '{task.description}'
  with rich.progress.Progress(
    *columns,
    rich.progress.TimeElapsedColumn(),
    console=console,
    transient=True,
  ) as bar:
    task = bar.add_task(title)
    done = threading.Event()

    def poll():
      while not done.wait(0.5):
        files, shards = finish_corpus.progress(output)
        bar.update(
          task,
          description=f'{title}: {files}/{total[0]} files read, '
          f'{shards}/{total[1]} shards written',
        )

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
      yield
    finally:
      done.set()
      thread.join()


def _number(count: int, what: str) -> str:
  return f'{count:,} {what}{"s" * (count != 1)}'
