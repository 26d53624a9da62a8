"""Runs in processes of their own: several at a time, signals, memory."""

import collections
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from tff_fedfish import environment
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.planning import memory
from tff_fedfish.printing import format_bytes
from tff_fedfish.run import run_directory
from tff_fedfish.sweeping.runs import Run
from tff_fedfish.training import resources
from tff_fedfish.training.interruption import Interruption

_GPUS = pathlib.Path('/proc/driver/nvidia/gpus')


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

  After SIGINT or SIGTERM every running process gets one SIGTERM and finishes
  the client in hand; all have ended on return. A second signal kills them.

  Args:
    run_command: Runs a command line of `fedfish` and returns its exit code; a
      function of a module, which the processes import.
    runs: The runs.
    num_at_a_time: Maximum number of processes. Each has an equal part of the
      cores, on which its numbers depend, and one of the GPUs in turn.
    on_start: Called with each run that starts.
    on_end: Called with each run that ends, not after a signal, and the exit
      code of the first command that failed, or 0. A run that diverges has not
      failed.
    on_wait: Called several times a second with the runs that are running.

  Returns:
    130 after SIGINT, 143 after SIGTERM, otherwise 0.
  """
  places = _places(num_at_a_time)
  waiting, running, is_told = collections.deque(runs), [], False
  with Interruption('clients', _kill_children) as interruption:
    try:
      while running or (waiting and not interruption.requested):
        while waiting and places and not interruption.requested:
          run = waiting.popleft()
          try:
            process = _start(run_command, run, places[-1])
          except OSError:
            # Its log cannot be written. The others go on.
            on_end(run, 1)
            continue
          running.append((run, process, places.pop()))
          on_start(run)
        if interruption.requested and not is_told:
          for _, process, _ in running:
            # Not SIGINT: while it imports, that would print a traceback.
            process.terminate()
          is_told = True
        multiprocessing.connection.wait(
          [process.sentinel for _, process, _ in running], timeout=0.2
        )
        on_wait([run for run, *_ in running])
        for ended in [r for r in running if not r[1].is_alive()]:
          run, process, place = ended
          running.remove(ended)
          places.append(place)
          process.join()
          if not interruption.requested:
            # Negative: killed by a signal, such as for want of memory.
            on_end(run, 1 if process.exitcode < 0 else process.exitcode)
    finally:
      # None is left unless the block raised.
      for _, process, _ in running:
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


def _places(num_at_a_time: int) -> list[dict[str, str]]:
  """Returns the environment of each process that runs at the same time."""
  num_threads = max(1, environment.num_cores() // num_at_a_time)
  variables = resources.thread_variables(num_threads)
  places = [dict(variables) for _ in range(num_at_a_time)]
  visible = os.environ.get('CUDA_VISIBLE_DEVICES')
  if visible is None:
    gpus = [str(number) for number, _ in enumerate(_GPUS.glob('*'))]
  else:
    gpus = visible.split(',')
  if gpus and num_at_a_time > 1:
    for number, place in enumerate(places):
      place['CUDA_VISIBLE_DEVICES'] = gpus[number % len(gpus)]
      # Several processes may share the memory of a GPU.
      place['TF_FORCE_GPU_ALLOW_GROWTH'] = 'true'
  return places[::-1]


def _start(
  run_command: Callable[[Sequence[str]], int], run: Run, place: dict[str, str]
) -> multiprocessing.process.BaseProcess:
  """Starts the process of a run; raises OSError if it can write no log."""
  run.log.parent.mkdir(parents=True, exist_ok=True)
  run.log.open('ab').close()
  # Spawned, not forked: TensorFlow does not survive a fork.
  process = multiprocessing.get_context('spawn').Process(
    target=_carry_out, args=(run_command, run, place)
  )
  # Inherited: until it has a process group of its own, Ctrl-C reaches it.
  handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    process.start()
  finally:
    signal.signal(signal.SIGINT, handler)
  return process


def _carry_out(
  run_command: Callable[[Sequence[str]], int], run: Run, place: dict[str, str]
) -> None:
  """Runs in the new process; exits with the first code that is not 0."""
  # A terminal's Ctrl-C goes only to the parent, which passes on SIGTERM.
  os.setpgrp()
  signal.signal(signal.SIGINT, signal.default_int_handler)
  # It ends, cleanly, when its parent is gone.
  threading.Thread(target=_end_with_parent, daemon=True).start()
  log = os.open(run.log, os.O_WRONLY | os.O_APPEND)
  os.dup2(log, 1)
  os.dup2(log, 2)

  os.environ |= {'TF_CPP_MIN_LOG_LEVEL': '3'} | os.environ | place
  _wait_until_free(run)
  train, *evaluations = run.pending_commands()
  code = run_command(train)
  if code and not (code == 1 and run.diverged_checkpoint()):
    sys.exit(code)
  for command in evaluations:
    if code := run_command(command):
      sys.exit(code)


def _wait_until_free(run: Run) -> None:
  """Waits while a process of an earlier, killed sweep still saves the run."""
  said = ''
  while True:
    try:
      with run_directory.lock(run.directory):
        return
    except UserError as error:
      if not said:
        said = f'fedfish: note: waiting. {error}'
        print(said, file=sys.stderr, flush=True)
      time.sleep(0.2)
    except OSError:
      return  # `fedfish train` says what is wrong.


def _kill_children() -> None:
  for process in multiprocessing.active_children():
    process.kill()


def _end_with_parent() -> None:
  multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
  os.kill(os.getpid(), signal.SIGTERM)
