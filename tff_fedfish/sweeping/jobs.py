"""Runs in processes of their own: several at a time, signals, memory."""

import collections
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence

from tff_fedfish import environment
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import memory
from tff_fedfish.printing import format_bytes
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.training.interruption import Interruption


def require_memory(configs: Iterable[TrainConfig], num_jobs: int) -> None:
  """Raises UserError unless any `num_jobs` of the runs fit side by side.

  A single run is not refused: whether to try it is for the user to say.
  """
  sizes = sorted(map(memory.run_bytes, configs), reverse=True)
  num_together = min(num_jobs, len(sizes))
  available = environment.memory_bytes()['available']
  needed = sum(sizes[:num_together])
  if num_together < 2 or needed <= available:
    return
  raise UserError(
    f'`--jobs` is {num_jobs}, but {num_together} runs at once take up to '
    f'{format_bytes(needed)} (the largest {format_bytes(sizes[0])}), and '
    f'{format_bytes(available)} of memory are available. Lower it.'
  )


def run_jobs(
  run_command: Callable[[Sequence[str]], int],
  runs: Iterable[Run],
  num_at_a_time: int,
  on_start: Callable[[Run], None],
  on_end: Callable[[Run, int], None],
  on_wait: Callable[[Sequence[Run]], None] = lambda running: None,
) -> int:
  """Carries out the commands that are left of each run, in the given order.

  SIGINT or SIGTERM is passed on once to every running process, which finishes
  its current round; all have ended on return. A second signal kills them.

  Args:
    run_command: Runs a command line of `fedfish` and returns its exit code; a
      function of a module, which the processes import.
    runs: The runs.
    num_at_a_time: Maximum number of processes, which share the cores.
    on_start: Called with each run that starts.
    on_end: Called with each run that ends, not after a signal, and the exit
      code of the first command that failed, or 0. A run that diverges has not
      failed.
    on_wait: Called several times a second with the runs that are running.

  Returns:
    130 after SIGINT, 143 after SIGTERM, otherwise 0.
  """
  num_threads = max(1, len(os.sched_getaffinity(0)) // num_at_a_time)
  waiting, running, is_told = collections.deque(runs), [], False
  with Interruption('clients', _kill_children) as interruption:
    try:
      while running or (waiting and not interruption.requested):
        has_room = len(running) < num_at_a_time
        while waiting and has_room and not interruption.requested:
          run = waiting.popleft()
          try:
            running.append((run, _start(run_command, run, num_threads)))
          except OSError:
            # Its log cannot be written. The others go on.
            on_end(run, 1)
            continue
          on_start(run)
          has_room = len(running) < num_at_a_time
        if interruption.requested and not is_told:
          for _, process in running:
            os.kill(process.pid, interruption.requested)
          is_told = True
        multiprocessing.connection.wait(
          [process.sentinel for _, process in running], timeout=0.2
        )
        on_wait([run for run, _ in running])
        for run, process in [r for r in running if not r[1].is_alive()]:
          running.remove((run, process))
          process.join()
          if not interruption.requested:
            # Negative: killed by a signal, such as for want of memory.
            on_end(run, 1 if process.exitcode < 0 else process.exitcode)
    finally:
      # None is left unless the block raised.
      for _, process in running:
        process.kill()
        process.join()
  return interruption.exit_code


def failure_line(run: Run, exit_code: int) -> str:
  """Returns the line that says how a run failed."""
  try:
    lines = run.log.read_text(errors='replace').strip().splitlines()
  except OSError as error:
    lines = [str(error)]
  return (
    f'fedfish: error: the run {run.name} ended with exit code {exit_code}: '
    f'{lines[-1] if lines else ""} (all of its output: {run.log})'
  )


def _start(
  run_command: Callable[[Sequence[str]], int], run: Run, num_threads: int
) -> multiprocessing.process.BaseProcess:
  """Starts the process of a run; raises OSError if it can write no log."""
  run.log.parent.mkdir(parents=True, exist_ok=True)
  run.log.write_bytes(b'')
  # Spawned, not forked: TensorFlow does not survive a fork.
  process = multiprocessing.get_context('spawn').Process(
    target=_carry_out, args=(run_command, run, num_threads)
  )
  process.start()
  return process


def _carry_out(
  run_command: Callable[[Sequence[str]], int], run: Run, num_threads: int
) -> None:
  """Runs in the new process; exits with the first code that is not 0."""
  # A terminal's Ctrl-C goes only to the parent, which passes it on.
  os.setpgrp()
  # It ends, cleanly, when its parent is gone.
  threading.Thread(target=_end_with_parent, daemon=True).start()
  log = os.open(run.log, os.O_WRONLY | os.O_APPEND)
  os.dup2(log, 1)
  os.dup2(log, 2)

  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  from tff_fedfish.runtime import placement

  placement.limit_threads(num_threads)
  train, *evaluations = run.pending_commands()
  code = run_command(train)
  if code and not (code == 1 and run.diverged_checkpoint()):
    sys.exit(code)
  for command in evaluations:
    if code := run_command(command):
      sys.exit(code)


def _kill_children() -> None:
  for process in multiprocessing.active_children():
    process.kill()


def _end_with_parent() -> None:
  multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
  os.kill(os.getpid(), signal.SIGTERM)
