"""Costs until the first round: building, compiling, initial weights."""

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks import engine_data
from benchmarks.engine_rounds import build_process, memory_bytes
from benchmarks.engine_settings import Workload


class Build:
  """Builds and compiles the process of a workload; makes no weights."""

  def __init__(self, workload: dict):
    """Imports what is needed."""
    self._workload = Workload(**workload)
    _import()

  def turn(self) -> dict:
    """Builds, then compiles.

    Returns:
      `build_seconds`, `compile_initialize_seconds`, `compile_next_seconds`, and
      `seconds` of all three; `peak_bytes` of this process.
    """
    from tff_fedfish.runtime.execution import build_execution

    build_seconds, process = _timed(build_process, self._workload)
    # Kept, so that none can be freed while the next one is measured.
    initialize_seconds, initialize = _timed(build_execution, process.initialize)
    next_seconds, next_round = _timed(build_execution, process.next)
    # The clients' side is compiled when it is first needed.
    client_seconds, client_work = _timed(next_round.compiled_client_work)
    next_seconds += client_seconds
    del initialize, client_work
    return {
      'build_seconds': build_seconds,
      'compile_initialize_seconds': initialize_seconds,
      'compile_next_seconds': next_seconds,
      'seconds': build_seconds + initialize_seconds + next_seconds,
      'peak_bytes': memory_bytes(os.getpid(), 'VmHWM'),
    }


class FirstCalls:
  """Builds the process, and calls it; what a first call costs beyond another.

  TensorFlow optimizes a graph when it first runs it, which `Build` does not.
  """

  def __init__(self, workload: dict):
    """Imports what is needed."""
    self._workload = Workload(**workload)
    _import()

  def turn(self) -> dict:
    """Builds, then calls `initialize` and `next` twice each.

    Returns:
      `build_seconds`, `initialize_seconds` and `next_seconds` (a first call's
      beyond a second's), and `seconds` of all three; `draw_seconds` of a second
      call of `initialize`.
    """
    import tff_fedfish

    tff_fedfish.set_in_process_context()
    build_seconds, process = _timed(build_process, self._workload)
    # One state at a time: that of a large model is of gigabytes.
    first_initialize, _ = _timed(process.initialize)
    del _
    draw_seconds, state = _timed(process.initialize)
    datasets = engine_data.client_datasets(self._workload)
    first_next, output = _timed(process.next, state, datasets)
    state = output.state
    second_next, _ = _timed(process.next, state, datasets)
    # Noise may make a second call the slower one.
    initialize_seconds = max(0.0, first_initialize - draw_seconds)
    next_seconds = max(0.0, first_next - second_next)
    return {
      'build_seconds': build_seconds,
      'initialize_seconds': initialize_seconds,
      'next_seconds': next_seconds,
      'draw_seconds': draw_seconds,
      'seconds': build_seconds + initialize_seconds + next_seconds,
    }


def _import() -> None:
  import tff_fedfish.methods.fed_avg  # noqa: F401
  import tff_fedfish.methods.fed_fish.process  # noqa: F401
  import tff_fedfish.runtime.in_process_context  # noqa: F401


def _timed(call: Callable, *arguments: Any) -> tuple[float, Any]:
  start = time.perf_counter()
  result = call(*arguments)
  return time.perf_counter() - start, result
