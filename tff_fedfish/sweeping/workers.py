"""Runs command lines of `fedfish` in processes of their own, some at a time.

Small models leave cores idle: two single-threaded processes train two arms in
little more than the time of one.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from tff_fedfish.training.interruption import Interruption

Commands = Sequence[Sequence[str]]

INTERRUPTED = (130, 143)
"""Exit codes after SIGINT and SIGTERM."""
CONTINUES = 'fedfish: interrupted; the same command continues.'
"""What is said after one of them."""


def default_num_workers(num_jobs: int) -> int:
  """Returns how many jobs to run at a time: one per core, two at most."""
  return max(1, min(num_jobs, len(os.sched_getaffinity(0)), 2))


def run_jobs(
  jobs: dict[str, tuple[Commands, pathlib.Path]],
  num_workers: int,
  on_tick: Callable[[set[str], set[str]], None],
  on_end: Callable[[str, int], None] = lambda name, exit_code: None,
  after_failure: Mapping[str, Callable[[], Commands | None]] | None = None,
) -> dict[str, int]:
  """Runs jobs, `num_workers` at a time, in the given order.

  SIGINT or SIGTERM is passed on once to every running job, which finishes the
  round in hand; no further job is started, and all have ended on return.

  Args:
    jobs: By name, its commands and the file that takes its output.
    num_workers: Jobs at a time; the cores are divided among them.
    on_tick: Called several times a second with the names of (running, ended)
      jobs.
    on_end: Called with name and exit code of each job that ends by itself,
      not after a signal.
    after_failure: By name. Called in the job's process, once, when a command
      ends with exit code 1: returns the commands to run in place of the rest,
      None where the job has failed.

  Returns:
    Exit code by name of the jobs that ran: that of the first command that
    failed, 0 if none did, or if others took its place. After a signal that of
    the signal for all, under the name '' if none ran.
  """
  num_threads = max(1, len(os.sched_getaffinity(0)) // num_workers)
  # Spawned, not forked: TensorFlow does not survive a fork.
  context = multiprocessing.get_context('spawn')
  waiting = collections.deque(jobs)
  running = {}
  exit_codes = {}
  is_told = False
  with Interruption('rounds') as interruption, _ending(running):
    while running or (waiting and not interruption.requested):
      while waiting and len(running) < num_workers:
        if interruption.requested:
          break
        name = waiting.popleft()
        process = context.Process(
          target=_run_commands,
          args=(*jobs[name], num_threads, (after_failure or {}).get(name)),
          name=name,
        )
        process.start()
        running[name] = process
      if interruption.requested and not is_told:
        for process in running.values():
          os.kill(process.pid, interruption.requested)
        is_told = True
      multiprocessing.connection.wait(
        [process.sentinel for process in running.values()], timeout=0.2
      )
      for name in [
        n for n, process in running.items() if not process.is_alive()
      ]:
        process = running.pop(name)
        process.join()
        # Negative: killed by a signal, such as for want of memory.
        exit_codes[name] = 1 if process.exitcode < 0 else process.exitcode
        if not interruption.requested:
          on_end(name, exit_codes[name])
      on_tick(set(running), set(exit_codes))
  if interruption.requested:
    exit_codes = {name: interruption.exit_code for name in exit_codes} or {
      '': interruption.exit_code
    }
  return exit_codes


@contextlib.contextmanager
def _ending(
  running: Mapping[str, multiprocessing.process.BaseProcess],
) -> Iterator[None]:
  """Ends the running jobs at once if the block does not end by itself.

  It does not when a second signal insists. A killed job loses the round in
  hand; its last checkpoint stands.
  """
  try:
    yield
  except BaseException:
    for process in running.values():
      process.kill()
    for process in running.values():
      process.join()
    raise


def _run_commands(
  commands: Commands,
  log_path: pathlib.Path,
  num_threads: int,
  after_failure: Callable[[], Commands | None] | None,
) -> None:
  """Runs in the new process; exits with the first code that is not 0."""
  # A terminal's Ctrl-C goes to the parent alone, which passes it on.
  os.setpgrp()
  _end_with_parent()
  log_path.parent.mkdir(parents=True, exist_ok=True)
  log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
  os.dup2(log, 1)
  os.dup2(log, 2)

  from tff_fedfish.cli.main import main

  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(num_threads)
  tf.config.threading.set_inter_op_parallelism_threads(num_threads)
  waiting = list(commands)
  while waiting:
    code = main(waiting.pop(0))
    if code:
      rest = after_failure() if code == 1 and after_failure else None
      if rest is None:
        sys.exit(code)
      waiting, after_failure = list(rest), None


def _end_with_parent() -> None:
  """Ends this process, cleanly, when its parent is gone."""
  parent = multiprocessing.parent_process()

  def watch():
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=watch, daemon=True).start()
