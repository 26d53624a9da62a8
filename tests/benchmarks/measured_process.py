"""Runs a command, and measures its time and the memory of its processes."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import psutil

_SAMPLE_SECONDS = 0.2


class ProcessMeasurement(NamedTuple):
  """Costs of a command."""

  seconds: float
  """From its start to its end, imports included."""
  processor_seconds: float
  """CPU time of it and of the processes below it that it waited for."""
  peak_tree_bytes: int
  """The largest sum of the memory of the command and the processes below it, of
  5 samples a second. What several processes share counts once, by equal parts
  in each of them (PSS)."""
  max_rss_bytes: int
  """Largest resident memory of a single process, as the system counted it."""


def run_measured(
  command: Sequence[str], env: dict[str, str] | None = None
) -> ProcessMeasurement:
  """Runs a command to its end.

  The system's count begins with the memory of the process that starts the
  command, which should therefore be small: do the large things elsewhere.

  Args:
    command: What to run.
    env: The environment of the command; None is this process's.

  Raises:
    RuntimeError: If the command fails; has the end of what it printed.
  """
  with tempfile.TemporaryFile() as log:
    start = time.perf_counter()
    process = subprocess.Popen(
      command, env=env, stdout=log, stderr=log, start_new_session=True
    )
    try:
      peak = 0
      while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
          break
        peak = max(peak, _tree_bytes(process.pid))
        time.sleep(_SAMPLE_SECONDS)
      seconds = time.perf_counter() - start
      process.returncode = os.waitstatus_to_exitcode(status)
    finally:
      if process.returncode is None:
        # Its workers, too: they are of its session.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
      log.seek(0)
      text = log.read().decode(errors='replace')
      raise RuntimeError(
        f'`{" ".join(command)}` ended with {process.returncode}:\n'
        f'{text[-2000:]}'
      )
  processor_seconds = usage.ru_utime + usage.ru_stime
  return ProcessMeasurement(
    seconds, processor_seconds, peak, usage.ru_maxrss * 1024
  )


def _tree_bytes(root: int) -> int:
  """Returns the proportional set size of a process and all below it."""
  num_bytes = 0
  with contextlib.suppress(psutil.Error):
    process = psutil.Process(root)
    for one in [process, *process.children(recursive=True)]:
      with contextlib.suppress(psutil.Error):
        num_bytes += one.memory_full_info().pss
  return num_bytes
