"""Worker processes that share a cohort, on one machine or on a Ray cluster.

Each worker is a Ray actor that runs the clients' side of a round on parts of
the cohort. What the parts add up to does not depend on who ran them, nor on
which was ready first: the results are handed on in the order of the parts.
"""

import collections
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.runtime import values
from tff_fedfish.runtime.partial_sums import PartialSum, divide_cohort
from tff_fedfish.runtime.ray_worker import RayWorker
from tff_fedfish.runtime.round_options import (
  RoundInterrupted,
  RoundOptions,
  RoundOutcome,
)

# How often a waiting driver looks whether it is to stop. Unit: seconds.
_POLL_SECONDS = 0.2
# Workers that may die of one part before the round is given up.
_MAX_LOST_WORKERS = 3


@dataclasses.dataclass
class _Part:
  """A part of the cohort on its way."""

  index: int
  clients: list[tuple[int, Any]]
  failed_once: set[int] = dataclasses.field(default_factory=set)
  num_lost_workers: int = 0
  avoided: Any = None
  """The worker on which it failed last."""


class RayWorkers:
  """Runs the parts of cohorts on Ray actors; to be closed in the end.

  Workers start at the first round, compile what they are sent, and are kept.
  One round at a time: another thread's waits.
  """

  def __init__(
    self,
    num_workers: int,
    *,
    threads_per_worker: int = 1,
    gpus_per_worker: float | None = None,
    address: str = 'local',
  ):
    """Starts nothing yet.

    Args:
      num_workers: Worker processes, >= 1.
      threads_per_worker: TensorFlow threads of each, >= 1.
      gpus_per_worker: GPUs that Ray reserves for each; None: 1 where the
        cluster has one for every worker, else 0.
      address: 'local' starts Ray here; 'auto' or HOST:PORT joins a cluster.
    """
    self._num_workers = num_workers
    self._threads = threads_per_worker
    self._gpus_per_worker = gpus_per_worker
    self._address = address
    self._owns_ray = self._shows_gpus = False
    self._worker_class = None
    self._idle: collections.deque = collections.deque()
    self._busy: dict[Any, tuple[_Part, Any]] = {}
    self._sent_spec: tuple[Any, Any] | None = None
    # Workers serve one round; another thread's waits for them.
    self._lock = threading.Lock()

  def __enter__(self) -> 'RayWorkers':
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends the workers, and Ray if it was started here."""
    import ray

    if ray.is_initialized():
      self._kill_all()
    self._worker_class = self._sent_spec = None
    if self._owns_ray:
      self._owns_ray = False
      ray.shutdown()

  def process_ids(self) -> list[int]:
    """Returns the process ids of the workers, started if need be."""
    import ray

    self._start()
    return ray.get([worker.process_id.remote() for worker in self._idle])

  def partial_sums(
    self,
    client_work: Any,
    spec: Any,
    broadcast: list[tf.Tensor],
    clients: Sequence[Any],
    options: RoundOptions,
    outcome: RoundOutcome,
  ) -> Iterator[PartialSum]:
    """Yields the partial sums of a cohort in order.

    Args:
      client_work: Not needed here; workers compile `spec` themselves.
      spec: The clients' side of the round.
      broadcast: What `prepare` made of the server's state; laid once into each
        node's object store.
      clients: Loaders or picklable values, in cohort order.
      options: The options in force.
      outcome: Filled as parts arrive.

    Raises:
      RoundInterrupted: If `options.should_stop` says so; the work in hand is
        given up with its workers.
      FailedError: If a client raises and failures are not tolerated, or a part
        ends its worker again and again.
    """
    del client_work
    import ray

    with self._lock:
      self._start()
      if self._sent_spec is None or self._sent_spec[0] != spec:
        self._sent_spec = (spec, _put(spec))
      arguments = (self._sent_spec[1], _put([*map(values.as_array, broadcast)]))
      del broadcast
      waiting = collections.deque(
        _Part(index, [(client, clients[client]) for client in part])
        for index, part in enumerate(
          divide_cohort(len(clients), options.num_partial_sums)
        )
      )
      num_parts, next_index, done = len(waiting), 0, {}
      with self._abandoning_what_is_left():
        while next_index < num_parts:
          self._hand_out(waiting, arguments)
          if not self._busy:
            raise FailedError('No worker process is left to run the round.')
          ready, _ = ray.wait(list(self._busy), timeout=_POLL_SECONDS)
          if options.should_stop is not None and options.should_stop():
            raise RoundInterrupted
          for reference in ready:
            part, result = self._receive(reference, outcome)
            if result is None:
              waiting.appendleft(part)
              continue
            if result.failed_first is not None:
              if not options.tolerates_failures:
                raise FailedError(
                  f'Client {result.failed_first.client_index} of the round '
                  f'failed: {result.failed_first.message}'
                )
              part.failed_once.add(result.failed_first.client_index)
              waiting.appendleft(part)
              continue
            done[part.index] = result
          while next_index in done:
            result = done.pop(next_index)
            outcome.counts.update(result.outcome.counts)
            outcome.failures.extend(result.outcome.failures)
            yield PartialSum(
              [tf.convert_to_tensor(array) for array in result.accumulator],
              [tf.convert_to_tensor(array) for array in result.secure_sums],
            )
            next_index += 1

  def _hand_out(self, waiting, arguments):
    """Gives waiting parts to idle workers."""
    num_workers = len(self._idle) + len(self._busy)
    for _ in range(len(waiting)):
      part = waiting.popleft()
      choices = [w for w in self._idle if w is not part.avoided]
      if not choices and num_workers == 1:
        choices = list(self._idle)
      if not choices:
        waiting.append(part)
        continue
      try:
        reference = choices[0].add_up.remote(
          *arguments, part.clients, frozenset(part.failed_once)
        )
      except (TypeError, tf.errors.OpError) as error:
        raise TypeError(
          'Clients that workers run must be picklable, as a ClientLoader is, '
          f'found {type(part.clients[0][1]).__name__}.'
        ) from error
      self._idle.remove(choices[0])
      self._busy[reference] = (part, choices[0])

  def _receive(self, reference, outcome):
    """Returns (part, its result); None for a result if its worker died."""
    import ray

    part, worker = self._busy.pop(reference)
    try:
      result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
      self._idle.append(worker)
      cause = ' '.join(str(error.cause).split())[:500]
      raise FailedError(
        f'A worker process failed: {type(error.cause).__name__}: {cause}'
      ) from error
    # It died, or was killed for its memory, or its machine is gone.
    except ray.exceptions.RayError as error:
      ray.kill(worker)
      outcome.num_lost_workers += 1
      part.num_lost_workers += 1
      self._idle.append(self._new_worker())
      if part.num_lost_workers == _MAX_LOST_WORKERS:
        indices = [index for index, _ in part.clients]
        raise FailedError(
          f'{_MAX_LOST_WORKERS} worker processes died, one after the other, at '
          f'clients {indices[0]} to {indices[-1]} of the round. They may need '
          'more memory than there is: lower `--config.engine.num_workers`.'
        ) from error
      return part, None
    part.avoided = worker
    self._idle.append(worker)
    return part, result

  @contextlib.contextmanager
  def _abandoning_what_is_left(self):
    """Ends the workers that are still at a part when a round ends early."""
    import ray

    try:
      yield
    finally:
      for _, worker in self._busy.values():
        ray.kill(worker)
        self._idle.append(self._new_worker())
      self._busy.clear()

  def _start(self):
    if self._worker_class is not None:
      return
    # Nothing is sent to anyone, and what Ray says of itself is not the user's.
    os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
    os.environ.setdefault('RAY_BACKEND_LOG_LEVEL', 'fatal')
    os.environ.setdefault('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
    import ray

    if not ray.is_initialized():
      with _without_native_stderr(), _keeping_sigterm():
        self._connect(ray)
      self._owns_ray = True
    found = ray.cluster_resources()
    gpus = self._gpus_per_worker
    if gpus is None:
      gpus = 1.0 if found.get('GPU', 0) >= self._num_workers else 0.0
    for kind, wanted in (('CPU', 1), ('GPU', gpus)):
      if found.get(kind, 0) < self._num_workers * wanted:
        option = 'num_workers' if kind == 'CPU' else 'gpus_per_worker'
        raise UserError(
          f'{self._num_workers} workers (`--config.engine.num_workers`) need '
          f'{self._num_workers * wanted:g} {kind}, but Ray at '
          f'{self._address!r} has {found.get(kind, 0):g}. Lower '
          f'`--config.engine.{option}`, or add machines.'
        )
    self._shows_gpus = gpus > 0
    self._worker_class = ray.remote(RayWorker).options(
      num_cpus=1, num_gpus=gpus, max_restarts=0
    )
    self._idle.extend(self._new_worker() for _ in range(self._num_workers))

  def _connect(self, ray):
    options = dict(
      logging_level=logging.CRITICAL,
      log_to_driver=False,
    )
    if self._address == 'local':
      ray.init(
        address='local',
        # Actors here are processes with threads of their own; the count is
        # what Ray admits, not what it pins.
        num_cpus=self._num_workers,
        include_dashboard=False,
        **options,
      )
    else:
      try:
        ray.init(address=self._address, **options)
      except (ConnectionError, ValueError, RuntimeError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise UserError(
          '`--config.engine.ray_address` must be local, auto or the HOST:PORT '
          f'of a running Ray cluster, found {self._address!r} ({reason}). '
          "Start one with `ray start --head`, or use 'local'."
        ) from error

    _silence(ray)

  def _new_worker(self):
    return self._worker_class.remote(self._threads, self._shows_gpus)

  def _kill_all(self):
    import ray

    for worker in [*self._idle, *(worker for _, worker in self._busy.values())]:
      ray.kill(worker)
    self._idle.clear()
    self._busy.clear()


def _put(value):
  """Lays a value into the object store of this node."""
  import ray

  try:
    return ray.put(value)
  except ray.exceptions.RayError as error:
    raise FailedError(
      "Ray's object store cannot take what the workers need: "
      f'{" ".join(str(error).split())[:300]}'
    ) from error


@contextlib.contextmanager
def _keeping_sigterm():
  """Keeps our handler of SIGTERM, which Ray replaces when it starts."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  handler = signal.getsignal(signal.SIGTERM)
  try:
    yield
  finally:
    if handler is not None:
      signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _without_native_stderr():
  """Keeps out one line of Ray's library, which says that it is to be quiet."""
  sys.stderr.flush()
  kept = os.dup(2)
  try:
    with open(os.devnull, 'wb') as nowhere:
      os.dup2(nowhere.fileno(), 2)
      yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)


def _silence(ray):
  """Keeps Ray's report of a lost worker, a screenful, off standard output."""
  # Private: what is public (log_to_driver) does not reach these reports.
  if hasattr(ray._private.worker, 'print_to_stdstream'):
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
