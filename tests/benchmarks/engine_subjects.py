"""Subjects of `make bench-engine`, each in a process of its own."""

import os
import pathlib
import re
import time
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff
import worker_processes
from benchmarks import engine_data, plain_loop
from benchmarks.engine_settings import (
  MAX_STOCK_ROUNDS,
  PLAIN,
  RAY,
  STOCK,
  Workload,
)

import tff_fedfish
from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning import plan as planning
from tff_fedfish.runtime import placement  # noqa: F401
from tff_fedfish.runtime.round_options import RoundOptions, use_round_options


class Rounds:
  """Rounds that go on from each other, always on the same data."""

  def __init__(self, engine: str, workload: Workload, num_workers: int = 1):
    """Builds the process and draws its initial weights.

    Args:
      engine: PLAIN, OURS, RAY or STOCK.
      workload: What a round is.
      num_workers: Worker processes of RAY, each of one thread.
    """
    self._max_rounds = MAX_STOCK_ROUNDS if engine == STOCK else None
    self._num_rounds = 0
    if engine == PLAIN:
      self._engine = plain_loop.PlainLoop(workload)
    else:
      self._engine = FederatedRounds(engine, workload, num_workers)

  def turn(self, num_rounds: int = 1) -> dict:
    """Runs some rounds.

    Returns:
      `seconds` of them all, the `loss` of the last one in nats per token,
      `resident_bytes` of this process and TFF's worker processes after it, of
      which `worker_bytes`, and this process's `peak_bytes` so far.

    Raises:
      RuntimeError: If TFF's own context would run too many rounds.
    """
    self._num_rounds += num_rounds
    if self._max_rounds and self._num_rounds > self._max_rounds:
      raise RuntimeError(
        f"TFF's own context may run {self._max_rounds} rounds, since its "
        f'memory grows with each, but {self._num_rounds} are asked for.'
      )
    start = time.perf_counter()
    for _ in range(num_rounds):
      loss = self._engine.run_round()
    seconds = time.perf_counter() - start
    worker_bytes = sum(
      _memory_bytes(pid, 'VmRSS') for pid in worker_processes.below(os.getpid())
    )
    own_bytes = _memory_bytes(os.getpid(), 'VmRSS')
    return {
      'seconds': seconds,
      'loss': loss,
      'resident_bytes': own_bytes + worker_bytes,
      'worker_bytes': worker_bytes,
      'peak_bytes': _memory_bytes(os.getpid(), 'VmHWM'),
    }

  def close(self) -> None:
    """Ends worker processes."""
    self._engine.close()


class FederatedRounds:
  """Rounds of a `tff.learning` process, as the trainer runs them."""

  def __init__(self, engine: str, workload: Workload, num_workers: int = 1):
    """Sets the engine's context; see `Rounds`."""
    if engine == STOCK:
      tff.backends.native.set_sync_local_cpp_execution_context()
    else:
      tff_fedfish.set_in_process_context()
    self._process = _build_process(workload)
    self._options = RoundOptions()
    self._workers = None
    if engine == RAY:
      from tff_fedfish.runtime.ray_workers import RayWorkers

      self._workers = RayWorkers(num_workers, threads_per_worker=1)
      self._options = RoundOptions(
        # The same for any number of workers, so that the results are.
        num_partial_sums=workload.num_clients,
        workers=self._workers,
      )
      self._clients = engine_data.client_loaders(workload)
    else:
      self._clients = engine_data.client_datasets(workload)
    self._state = self._process.initialize()

  def run_round(self) -> float:
    """Runs a round; returns the mean loss over all local steps, in nats."""
    with use_round_options(self._options):
      output = self._process.next(self._state, self._clients)
    self._state = output.state
    return float(output.metrics['client_work']['train']['loss'])

  def close(self) -> None:
    """Ends worker processes."""
    if self._workers is not None:
      self._workers.close()


class Build:
  """Builds a process and calls it: what comes before the first round's work.

  TensorFlow optimizes a graph when it first runs it.
  """

  def __init__(self, workload: Workload):
    """Imports what is needed."""
    import tff_fedfish.methods.fed_avg  # noqa: F401

    self._workload = workload
    tff_fedfish.set_in_process_context()

  def turn(self) -> dict:
    """Builds, then calls `initialize` and `next` twice each.

    Returns:
      `build_seconds`, `initialize_seconds` and `next_seconds` (a first call's
      beyond a second's), and `seconds` of all three.
    """
    build_seconds, process = _timed(_build_process, self._workload)
    # One state at a time: that of a large model is of gigabytes.
    first_initialize, _ = _timed(process.initialize)
    del _
    second_initialize, state = _timed(process.initialize)
    datasets = engine_data.client_datasets(self._workload)
    first_next, output = _timed(process.next, state, datasets)
    state = output.state
    second_next, _ = _timed(process.next, state, datasets)
    # Noise may make a second call the slower one.
    initialize_seconds = max(0.0, first_initialize - second_initialize)
    next_seconds = max(0.0, first_next - second_next)
    return {
      'build_seconds': build_seconds,
      'initialize_seconds': initialize_seconds,
      'next_seconds': next_seconds,
      'seconds': build_seconds + initialize_seconds + next_seconds,
    }


class Plan:
  """Plans a round, which times steps of smaller models on this machine."""

  def __init__(self, workload: Workload):
    """Makes the config."""
    self._config = train_config(workload)

  def turn(self) -> dict:
    """Returns the planned `round_seconds` and `peak_bytes`; its `seconds`."""
    seconds, planned = _timed(planning.plan_round, self._config)
    return {
      'seconds': seconds,
      'round_seconds': planned.time.round_seconds,
      'peak_bytes': planned.memory[0].peak_bytes,
    }


def train_config(workload: Workload) -> TrainConfig:
  """Returns the demo's config with the sizes of a workload."""
  values = {
    'algorithm.name': workload.algorithm,
    'client_work.num_local_epochs': workload.num_local_epochs,
    'client_work.local_batch_size': workload.local_batch_size,
    'client_work.max_sequences_per_client': workload.local_batch_size
    * workload.num_local_steps,
    'model.preset': workload.preset,
    'model.compute_dtype': workload.compute_dtype,
    'data.sequence_length': workload.sequence_length,
    'cohorts.cohort_size': workload.num_clients,
  }
  if workload.algorithm == 'fed_fish':
    values['algorithm.fisher_estimator'] = workload.fisher_estimator
  return config_loading.load_config(
    'demo',
    [f'--config.{name}={value}' for name, value in values.items()],
  )


def _build_process(workload: Workload):
  model = tff_fedfish.build_language_model(
    workload.transformer_config(), model_seed=plain_loop.MODEL_SEED
  )
  optimizers = tff.learning.optimizers
  options = dict(
    client_optimizer=optimizers.build_sgdm(plain_loop.CLIENT_LEARNING_RATE),
    server_optimizer=optimizers.build_adam(plain_loop.SERVER_LEARNING_RATE),
    num_local_epochs=workload.num_local_epochs,
  )
  if workload.algorithm == 'fed_avg':
    return tff_fedfish.build_fed_avg(model, **options)
  return tff_fedfish.build_fed_fish(
    model, fisher_estimator=workload.fisher_estimator, **options
  )


def _memory_bytes(pid: int, name: str) -> int:
  """Returns a field of a process's status.

  Args:
    pid: The process.
    name: 'VmRSS' (resident now) or 'VmHWM' (the most so far; unlike the
      system's `ru_maxrss`, without what the parent held before).
  """
  status = pathlib.Path(f'/proc/{pid}/status').read_text(encoding='utf-8')
  return int(re.search(rf'^{name}:\s*(\d+) kB$', status, re.M)[1]) * 1024


def _timed(call: Callable, *arguments: Any) -> tuple[float, Any]:
  start = time.perf_counter()
  result = call(*arguments)
  return time.perf_counter() - start, result
