"""Federated rounds of one engine, as the turns of a measured process."""

import os
import pathlib
import re
import time

import worker_processes
from benchmarks import engine_data, plain_loop
from benchmarks.engine_settings import (
  MAX_STOCK_ROUNDS,
  PLAIN,
  RAY,
  STOCK,
  Workload,
)

from tff_fedfish.runtime.round_options import RoundOptions, use_round_options


class Rounds:
  """Rounds that go on from each other, always on the same data."""

  def __init__(self, engine: str, workload: dict, num_workers: int = 1):
    """Builds the process and draws its initial weights.

    Args:
      engine: PLAIN, OURS, RAY or STOCK.
      workload: The fields of a `Workload`.
      num_workers: Worker processes of RAY, each of one thread.
    """
    parsed = Workload(**workload)
    self._max_rounds = MAX_STOCK_ROUNDS if engine == STOCK else None
    self._num_rounds = 0
    if engine == PLAIN:
      self._engine = plain_loop.PlainLoop(parsed)
    else:
      self._engine = FederatedRounds(engine, parsed, num_workers)

  def turn(self, num_rounds: int = 1) -> dict:
    """Runs some rounds.

    Args:
      num_rounds: How many.

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
      memory_bytes(pid, 'VmRSS') for pid in worker_processes.below(os.getpid())
    )
    own_bytes = memory_bytes(os.getpid(), 'VmRSS')
    return {
      'seconds': seconds,
      'loss': loss,
      'resident_bytes': own_bytes + worker_bytes,
      'worker_bytes': worker_bytes,
      'peak_bytes': memory_bytes(os.getpid(), 'VmHWM'),
    }

  def close(self) -> None:
    """Ends worker processes."""
    self._engine.close()


class FederatedRounds:
  """Rounds of a `tff.learning` process, as the trainer runs them."""

  def __init__(self, engine: str, workload: Workload, num_workers: int = 1):
    """Sets the engine's context; see `Rounds`."""
    import tensorflow_federated as tff

    import tff_fedfish

    if engine == STOCK:
      tff.backends.native.set_sync_local_cpp_execution_context()
    else:
      tff_fedfish.set_in_process_context()
    self._process = build_process(workload)
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

  def weights(self) -> list:
    """Returns the server's weights."""
    return list(self._process.get_model_weights(self._state).trainable)

  def close(self) -> None:
    """Ends worker processes."""
    if self._workers is not None:
      self._workers.close()


def build_process(workload: Workload):
  """Returns the learning process of a workload."""
  import tensorflow_federated as tff

  import tff_fedfish

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


def memory_bytes(pid: int, name: str) -> int:
  """Returns a field of a process's status.

  Args:
    pid: The process.
    name: 'VmRSS' (resident now) or 'VmHWM' (the most so far; unlike the
      system's `ru_maxrss`, without what the parent held before).
  """
  status = pathlib.Path(f'/proc/{pid}/status').read_text(encoding='utf-8')
  return int(re.search(rf'^{name}:\s*(\d+) kB$', status, re.M)[1]) * 1024
