"""Processes that are measured in turns, each one variant for itself.

A process is set up once and then waits; it is told over a socket when its next
turn is. So the turns of variants that are compared can alternate, and imports,
memory and caches of one do not count for another.
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.engine_settings import Settings, say

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# A turn that takes longer hangs.
_TIMEOUT_SECONDS = 3600
# Ray takes some seconds to end its processes.
_CLOSING_SECONDS = 15


class MeasuredProcess:
  """A process of `benchmarks.engine_turns`. Ends, with all below it, on exit.

  Its session is its own, so that TFF's worker process, which outlives its
  parent, can be ended with it.
  """

  def __init__(
    self, kind: str, options: Mapping[str, Any], *, num_threads: int
  ):
    """Starts it and waits until it is set up.

    Args:
      kind: A key of `engine_turns.KINDS`.
      options: Arguments of its set-up, as JSON can hold them; a dataclass
        becomes a dictionary.
      num_threads: CPUs that it may use.

    Raises:
      RuntimeError: If it fails; has the end of what it printed.
    """
    values = {
      name: dataclasses.asdict(value)
      if dataclasses.is_dataclass(value)
      else value
      for name, value in options.items()
    }
    self._kind = kind
    self._is_idle = False
    self._log = tempfile.TemporaryFile()
    self._socket, theirs = socket.socketpair()
    self._socket.settimeout(_TIMEOUT_SECONDS)
    self._lines = self._socket.makefile('r', encoding='utf-8')
    with theirs:
      self._process = subprocess.Popen(
        [
          *(sys.executable, '-m', 'benchmarks.engine_turns'),
          *(f'--kind={kind}', f'--options={json.dumps(values)}'),
          *(f'--threads={num_threads}', f'--socket={theirs.fileno()}'),
        ],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=self._log,
        stderr=self._log,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
      )
    try:
      self._receive()
    except BaseException:
      self.close()
      raise

  def __enter__(self) -> 'MeasuredProcess':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def turn(self, **arguments: Any) -> dict[str, Any]:
    """Returns what the next turn measured.

    Args:
      **arguments: Of the turn, as JSON can hold them.

    Raises:
      RuntimeError: If the process fails; has the end of what it printed.
    """
    self._is_idle = False
    # Where it has ended already, receiving says why.
    with contextlib.suppress(BrokenPipeError):
      self._socket.sendall(json.dumps(arguments).encode() + b'\n')
    return self._receive()

  def close(self) -> None:
    """Ends the process and all below it; between turns, it ends by itself."""
    self._lines.close()
    self._socket.close()
    deadline = time.monotonic() + (_CLOSING_SECONDS if self._is_idle else 0)
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (
      os.waitid(os.P_PID, self._process.pid, options) is None
      and time.monotonic() < deadline
    ):
      time.sleep(0.05)
    # It leads its group until it is waited for, so the id is not another's.
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)
    self._process.wait()
    self._log.close()

  def _receive(self) -> dict[str, Any]:
    try:
      line = self._lines.readline()
    except TimeoutError:
      why = f'did not answer within {_TIMEOUT_SECONDS} s'
    except ConnectionResetError:
      why = 'ended early'
    else:
      if line:
        self._is_idle = True
        return json.loads(line)
      why = 'ended early'
    self._log.seek(0)
    text = self._log.read().decode(errors='replace')
    raise RuntimeError(f'The process `{self._kind}` {why}:\n{text[-2000:]}')


def environment() -> dict[str, str]:
  """Returns the environment of processes that import what is measured."""
  paths = [str(_REPOSITORY), str(_REPOSITORY / 'tests')]
  return os.environ | {
    'PYTHONPATH': os.pathsep.join(paths),
    'TF_CPP_MIN_LOG_LEVEL': '3',
    # The goals are those of processors.
    'CUDA_VISIBLE_DEVICES': '-1',
  }


def once(
  settings: Settings,
  kind: str,
  options: Mapping[str, Any],
  **arguments: Any,
) -> dict[str, Any]:
  """Returns what the only turn of a new process measured."""
  threads = settings.num_threads
  with MeasuredProcess(kind, options, num_threads=threads) as process:
    return process.turn(**arguments)


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
    processes = {}
    for name, (kind, options) in variants.items():
      processes[name] = stack.enter_context(
        MeasuredProcess(kind, options, num_threads=settings.num_threads)
      )
    for turn in range(1 + repeats):
      for name in alternating(list(variants), turn):
        result = processes[name].turn()
        say(
          f'{name}: {"turn" if turn else "warm-up"} {result["seconds"]:.2f} s'
        )
        if turn:
          turns[name].append(result)
  return {name: turns[name] for name in variants}


def alternating(names: list[str], turn: int) -> Iterator[str]:
  """Returns the names in the order of a turn: no variant is always first."""
  return iter(names if turn % 2 == 0 else names[::-1])
