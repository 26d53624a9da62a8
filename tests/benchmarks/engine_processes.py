"""Processes that are measured in turns, each one variant for itself.

A process is set up once and then waits until it is told that its next turn is.
So the turns of variants that are compared can alternate, and imports, memory
and caches of one do not count for another.
"""

import collections
import contextlib
import importlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import traceback
from collections.abc import Mapping
from typing import Any

from benchmarks.engine_settings import Settings
from benchmarks.shared import say

# A turn that takes longer hangs. Ray takes some seconds to end its processes.
_TIMEOUT_SECONDS = 3600
_CLOSING_SECONDS = 15
_ENVIRONMENT = {
  'TF_CPP_MIN_LOG_LEVEL': '3',
  # The goals are those of processors.
  'CUDA_VISIBLE_DEVICES': '-1',
}


class MeasuredProcess(contextlib.AbstractContextManager):
  """A process with one object of `engine_subjects`, whose turns it takes.

  Its session is its own, so that TFF's worker process, which outlives its
  parent, is ended with it.
  """

  def __init__(self, kind: str, num_threads: int, **options: Any):
    """Starts it and waits until it is set up.

    Args:
      kind: A class of `engine_subjects`.
      num_threads: CPUs that it may use.
      **options: Arguments of the class.

    Raises:
      RuntimeError: If it fails; says why.
    """
    self._kind, self._is_idle = kind, False
    context = multiprocessing.get_context('spawn')
    self._pipe, theirs = context.Pipe()
    self._process = context.Process(
      target=_take_turns, args=(theirs, kind, num_threads, options)
    )
    self._process.start()
    theirs.close()
    try:
      self._receive()
    except BaseException:
      self.close()
      raise

  def __exit__(self, *_) -> None:
    self.close()

  def turn(self, **arguments: Any) -> dict[str, Any]:
    """Returns what the next turn measured.

    Raises:
      RuntimeError: If the process fails; says why.
    """
    self._is_idle = False
    # Where it has ended already, receiving says why.
    with contextlib.suppress(BrokenPipeError):
      self._pipe.send(arguments)
    return self._receive()

  def close(self) -> None:
    """Ends the process and all below it; between turns, it ends by itself."""
    self._pipe.close()
    seconds = _CLOSING_SECONDS if self._is_idle else 0
    multiprocessing.connection.wait([self._process.sentinel], seconds)
    # It leads its group until it is joined, so the id is not another's.
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)
    self._process.kill()
    self._process.join()

  def _receive(self):
    why = f'did not answer within {_TIMEOUT_SECONDS} s'
    if self._pipe.poll(_TIMEOUT_SECONDS):
      try:
        found = self._pipe.recv()
      except (EOFError, ConnectionResetError):
        found = 'it was killed'
      if not isinstance(found, str):
        self._is_idle = True
        return found
      why = f'ended early: {found}'
    raise RuntimeError(f'The process `{self._kind}` {why}')


def take_turns(
  settings: Settings,
  variants: Mapping[str, tuple[str, Mapping[str, Any]]],
  *,
  repeats: int,
) -> dict[str, list[dict[str, Any]]]:
  """Returns what `repeats` turns of each variant measured, after one more.

  The first turn of each warms it up, and is not among the results.

  Args:
    settings: Has the number of threads.
    variants: By name, kind and options of a process.
    repeats: Turns that count.
  """
  turns = collections.defaultdict(list)
  with contextlib.ExitStack() as stack:
    processes = {
      name: stack.enter_context(
        MeasuredProcess(kind, settings.num_threads, **options)
      )
      for name, (kind, options) in variants.items()
    }
    for turn in range(1 + repeats):
      for name in alternating(list(variants), turn):
        result = processes[name].turn()
        what = 'turn' if turn else 'warm-up'
        say(f'{name}: {what} {result["seconds"]:.2f} s')
        if turn:
          turns[name].append(result)
  return {name: turns[name] for name in variants}


def once(settings: Settings, kind: str, **options: Any) -> dict[str, Any]:
  """Returns what the only turn of a new process measured."""
  with MeasuredProcess(kind, settings.num_threads, **options) as process:
    found = process.turn()
  say(f'{kind}: {found["seconds"]:.2f} s')
  return found


def alternating(names: list[str], turn: int) -> list[str]:
  """Returns the names in the order of a turn: no variant is always first."""
  return names if turn % 2 == 0 else names[::-1]


def _take_turns(pipe, kind, num_threads, options):
  """Runs in the process, until the other end of the pipe is closed."""
  os.setsid()
  # TFF's worker process must not keep it open.
  os.set_inheritable(pipe.fileno(), False)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  for stream in (1, 2):
    os.dup2(nowhere, stream)
  os.environ |= _ENVIRONMENT
  # For all processes below it, too.
  cpus = sorted(os.sched_getaffinity(0))[:num_threads]
  os.sched_setaffinity(0, cpus)
  try:
    subjects = importlib.import_module('benchmarks.engine_subjects')
    subjects.placement.limit_threads(num_threads)
    subject = getattr(subjects, kind)(**options)
    pipe.send({})
    with contextlib.suppress(EOFError):
      while True:
        pipe.send(subject.turn(**pipe.recv()))
    if hasattr(subject, 'close'):
      subject.close()
  except BrokenPipeError:
    pass  # Whoever asked is gone.
  except Exception:  # pylint: disable=broad-exception-caught
    pipe.send(traceback.format_exc()[-2000:])
  finally:
    # Nobody else would end TFF's worker process.
    os.killpg(os.getpid(), signal.SIGKILL)
