"""Grouping jobs of Beam: its options, log and progress, and how to stop it."""

import argparse
import concurrent.futures
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import psutil

from tff_fedfish.cli.options import refuse_unknown
from tff_fedfish.errors import UserError
from tff_fedfish.training.interruption import signals_handled

# After a signal, until a job that does not end is ended.
_PATIENCE_SECONDS = 10.0

Watch = Callable[[str, Sequence[int]], None]
"""Called with (work directory, bytes of each reading task) at the start."""


def read_beam_flags(arguments: argparse.Namespace) -> list[str]:
  """Returns the extra arguments if Beam knows all of them.

  Args:
    arguments: With `extra`, what our own parser did not know, and `parser`.

  Raises:
    UserError: If `--runner` names no runner.
  """
  flags = list(arguments.extra)
  if not flags:
    return flags
  from apache_beam.options.pipeline_options import (
    PipelineOptions,
    StandardOptions,
  )
  from apache_beam.runners.runner import create_runner

  # Its module may bring options of its own.
  runner = PipelineOptions(flags).view_as(StandardOptions).runner
  if runner is not None:
    try:
      create_runner(runner)
    except (ValueError, ImportError, AttributeError) as error:
      raise UserError(
        f'`--runner` must name a Beam runner, but is {runner!r} '
        f'({" ".join(str(error).split())}). Leave it out to run in this '
        'process.'
      ) from error
  # The callback is how Beam hands out the parser of all its options.
  parsers = []
  PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
  parsers[0].error = arguments.parser.error
  _, unknown = parsers[0].parse_known_args(flags)
  if unknown:
    refuse_unknown(arguments.parser, unknown)
  return flags


@contextlib.contextmanager
def quiet_beam(beam_flags: Sequence[str]) -> Iterator[None]:
  """Keeps Beam's log from the screen, if the job runs on this machine.

  Its errors come as exceptions anyway. With a runner elsewhere, a user follows
  the job by its log.
  """
  if any(flag.startswith('--runner') for flag in beam_flags):
    logging.basicConfig(level=logging.INFO)
    yield
    return
  previous = logging.root.manager.disable
  logging.disable(logging.CRITICAL)
  try:
    yield
  finally:
    logging.disable(previous)


@contextlib.contextmanager
def interruptible(clean_up: Callable[[], None]) -> Iterator[None]:
  """Lets Ctrl-C and SIGTERM through Beam, which wraps every exception.

  Args:
    clean_up: Removes what the job has written and not removed itself; called
      when a signal has ended it, or after some seconds if it does not end.
  """
  received = []

  def give_up():
    clean_up()
    os._exit(128 + received[0])

  def stop(signal_num, frame):
    del frame
    received.append(signal_num)
    if len(received) == 1:
      timer = threading.Timer(_PATIENCE_SECONDS, give_up)
      timer.daemon = True
      timer.start()
    # Beam waits for its worker processes, which may not have heard of it.
    for process in psutil.Process().children(recursive=True):
      with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
    raise KeyboardInterrupt

  with signals_handled(stop):
    try:
      yield
    except BaseException:
      if not received:
        raise
      # One more does not stop what follows: there is the timer.
      for signal_num in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_num, signal.SIG_IGN)
      what = 'interrupted' if received[0] == signal.SIGINT else 'terminated'
      print(f'fedfish: {what}.', file=sys.stderr, flush=True)
      # The job's own cleaning may be what was interrupted. A usual exit would
      # wait for threads that Beam, torn from its work, cannot stop any more.
      clean_up()
      os._exit(128 + received[0])


@contextlib.contextmanager
def show_progress(title: str, num_shards: int) -> Iterator[Watch]:
  """Shows a title, and how far the job inside is.

  Yields:
    The `watch` argument of `run_group_job`.
  """
  print(title, file=sys.stderr, flush=True)
  done = threading.Event()
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    try:
      yield lambda work, sizes: thread.submit(
        _show_steps, work, sizes, num_shards, done
      )
    finally:
      done.set()


def _show_steps(
  work: str, sizes: Sequence[int], num_shards: int, done: threading.Event
) -> None:
  """Shows the input that is read, then the shards that are written."""
  from pipelines import reports
  from tff_fedfish.data import places
  from tff_fedfish.progress import Progress

  # Looking is free on a local disk only.
  seconds = 10.0 if places.is_remote(work) else 0.5

  def mebibytes(tasks):
    return sum(sizes[number] for number in tasks) >> 20

  found, num_drops = reports.find_tasks(work), 0
  completed = mebibytes(found)
  with Progress(
    'read', sum(sizes) >> 20, unit='MiB', completed=completed
  ) as progress:
    while len(found) < len(sizes) and not done.wait(seconds):
      tasks = reports.find_tasks(work)
      new = [path for number, path in tasks.items() if number not in found]
      if new:
        num_drops += sum(
          tally.num
          for task in reports.read_task_reports(new)
          for file in task.files
          for tally in file.drops.values()
        )
        found, step = tasks, mebibytes(tasks) - completed
        completed += step
        progress.advance(step, score=f'{num_drops:,} records dropped')
  num_done = len(reports.find_shards(work))
  with Progress(
    'write', num_shards, unit='shard', completed=num_done
  ) as progress:
    while num_done < num_shards and not done.wait(seconds):
      step = len(reports.find_shards(work)) - num_done
      num_done += step
      if step:
        progress.advance(step)
