"""Runs jobs in processes of their own, some at a time.

Small models leave cores idle: two single-threaded processes train two arms in
little more than the time of one.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from tff_fedfish.sweeping.jobs import Job
from tff_fedfish.training.interruption import Interruption

INTERRUPTED = (130, 143)
"""Exit codes after SIGINT and SIGTERM."""
CONTINUES = 'fedfish: interrupted; the same command continues.'
"""Line to print after a signal."""


def run_jobs(
  run_command: Callable[[Sequence[str]], int],
  jobs: Iterable[Job],
  num_at_a_time: int,
  on_tick: Callable[[set[str], set[str]], None],
  on_end: Callable[[Job, int], None],
) -> int:
  """Runs the commands that are left of each job, in the given order.

  SIGINT or SIGTERM is passed on once to every running job, which finishes its
  current round; no further job is started, and all have ended on return. A
  second signal kills the running jobs: each loses its current round.

  Args:
    run_command: Runs a command line of `fedfish` and returns its exit code; a
      function of a module, which the processes import.
    jobs: The jobs; the cores are divided among those that run at a time.
    num_at_a_time: Maximum number of running jobs.
    on_tick: Called several times a second with the names of (running, ended)
      jobs.
    on_end: Called with each job that ends by itself, not after a signal, and
      its exit code: that of the first command that failed, 0 if none did or
      the last good checkpoint of a diverged run was evaluated instead.

  Returns:
    130 after SIGINT, 143 after SIGTERM, otherwise 0.
  """
  num_threads = max(1, len(os.sched_getaffinity(0)) // num_at_a_time)
  # Spawned, not forked: TensorFlow does not survive a fork.
  context = multiprocessing.get_context('spawn')
  waiting, running, ended = collections.deque(jobs), {}, set()
  is_told = False
  with Interruption('rounds') as interruption, _killing(running):
    while running or (waiting and not interruption.requested):
      while waiting and len(running) < num_at_a_time:
        if interruption.requested:
          break
        job = waiting.popleft()
        process = context.Process(
          target=_run_job, args=(run_command, job, num_threads), name=job.name
        )
        process.start()
        running[job.name] = job, process
      if interruption.requested and not is_told:
        for _, process in running.values():
          os.kill(process.pid, interruption.requested)
        is_told = True
      multiprocessing.connection.wait(
        [process.sentinel for _, process in running.values()], timeout=0.2
      )
      for job, process in list(running.values()):
        if process.is_alive():
          continue
        del running[job.name]
        ended.add(job.name)
        process.join()
        if not interruption.requested:
          # Negative: killed by a signal, such as for want of memory.
          on_end(job, 1 if process.exitcode < 0 else process.exitcode)
      on_tick(set(running), set(ended))
  return interruption.exit_code


@contextlib.contextmanager
def _killing(running):
  """Kills the running jobs if the block does not end by itself."""
  try:
    yield
  except BaseException:
    for _, process in running.values():
      process.kill()
    for _, process in running.values():
      process.join()
    raise


def _run_job(run_command, job: Job, num_threads: int) -> None:
  """Runs in the new process; exits with the first code that is not 0."""
  # A terminal's Ctrl-C goes only to the parent, which passes it on.
  os.setpgrp()
  _end_with_parent()
  job.log.parent.mkdir(parents=True, exist_ok=True)
  log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
  os.dup2(log, 1)
  os.dup2(log, 2)

  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  import tensorflow as tf

  tf.config.threading.set_intra_op_parallelism_threads(num_threads)
  tf.config.threading.set_inter_op_parallelism_threads(num_threads)
  commands, is_diverged = job.pending_commands(), False
  while commands:
    code = run_command(commands.pop(0))
    if code:
      diverged = code == 1 and not is_diverged
      commands = job.commands_if_diverged() if diverged else None
      if commands is None:
        sys.exit(code)
      is_diverged = True


def _end_with_parent() -> None:
  """Ends this process, cleanly, when its parent is gone."""
  parent = multiprocessing.parent_process()

  def watch():
    multiprocessing.connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=watch, daemon=True).start()
