"""Worker processes that share a cohort, on one machine or on a Ray cluster.

Each worker is a Ray actor that runs the clients' side of a round on parts of
the cohort. Sums do not depend on which worker ran a part, nor on which part was
ready first: they are handed on in the order of the parts.
"""

import collections
import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_fedfish.errors import FailedError, require
from tff_fedfish.runtime import client_runner, placement, values
from tff_fedfish.runtime.ray_hosts import host_name, require_same
from tff_fedfish.runtime.ray_pool import (
  MAX_LOST_WORKERS,
  POLL_SECONDS,
  RayPool,
)
from tff_fedfish.runtime.ray_watch import LateParts, describe_error
from tff_fedfish.runtime.round_options import (
  ClientFailure,
  RoundInterrupted,
  RoundOptions,
  RoundOutcome,
)


class RayWorkers(contextlib.AbstractContextManager):
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
    paths: Sequence[str] = (),
    deterministic_ops: bool = False,
  ):
    """Starts nothing yet; for the arguments see `ray_pool.RayPool`.

    Raises:
      ValueError: If there is no worker, or it has no thread.
    """
    require(num_workers >= 1, 'num_workers', '>= 1', num_workers)
    require(
      threads_per_worker >= 1, 'threads_per_worker', '>= 1', threads_per_worker
    )
    self._make_pool = lambda: RayPool(
      RayWorker,
      num_workers,
      threads_per_worker=threads_per_worker,
      gpus_per_worker=gpus_per_worker,
      address=address,
      paths=paths,
      deterministic_ops=deterministic_ops,
    )
    self._pool: RayPool | None = None
    self._sent_spec: tuple[Any, Any] | None = None
    # Hosts on which a client has failed.
    self._told: set[str] = set()
    self._lock = threading.Lock()

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends the workers, and Ray if it was started for them."""
    pool, self._pool, self._sent_spec = self._pool, None, None
    if pool is not None:
      pool.close()

  def start(self, should_stop: Callable[[], bool] | None = None) -> None:
    """Starts the workers and waits until all are up.

    Without it the first round does so.

    Raises:
      RoundInterrupted, UserError, FailedError: As `partial_sums`.
    """
    with self._lock:
      self._start(should_stop)

  def partial_sums(
    self,
    spec: Any,
    broadcast: list[tf.Tensor],
    clients: Sequence[Any],
    options: RoundOptions,
    outcome: RoundOutcome,
  ) -> Iterator[list[tf.Tensor]]:
    """Yields the partial sums of a cohort in order.

    Workers compile the spec, a `client_runner.ClientWorkSpec`, themselves. The
    broadcast is laid once into each node's object store. For the other
    arguments see `client_runner.partial_sums`.

    Raises:
      RoundInterrupted: If `options.should_stop` says so, also while workers
        start; the work in hand is given up with its workers.
      UserError: If there is no Ray at the address, it is too small, or a host
        of it lacks what workers need.
      FailedError: If a client raises and failures are not tolerated, a part
        ends its worker again and again, workers cannot be set up or have no
        room, or Ray cannot hold what they are sent.
      TypeError: If a client cannot be pickled.
    """
    with self._lock:
      self._start(options.should_stop)
      if self._sent_spec is None or self._sent_spec[0] != spec:
        self._sent_spec = (spec, _put(spec))
      sent = (self._sent_spec[1], _put([*map(values.as_array, broadcast)]))
      del broadcast
      parts = [
        _Part(index, [(client, clients[client]) for client in part])
        for index, part in enumerate(
          client_runner.divide_cohort(len(clients), options.num_partial_sums)
        )
      ]
      round_ = _Round(self._pool, sent, parts, options, outcome, self._told)
      with contextlib.closing(round_.results()) as results:
        for result in results:
          yield [tf.convert_to_tensor(array) for array in result.accumulator]

  def _start(self, should_stop):
    """Makes the pool, unless there is one, and waits for all its workers."""
    if self._pool is not None:
      if self._pool.is_connected():
        return
      # The program has shut Ray down, and the workers with it.
      self.close()
    pool = self._make_pool()
    try:
      pool.wait_for_all(should_stop)
    except BaseException:
      pool.close()
      raise
    self._pool = pool


class PartResult(NamedTuple):
  """Sum over a part of a cohort, as arrays."""

  accumulator: list[np.ndarray]
  outcome: RoundOutcome
  """Counts and failures of the part's clients."""
  outputs: Sequence[tuple[int, Any]] = ()
  """Index of each client, and a reference to its output in Ray's object store:
  only one client's need be in the driver's memory."""


class _PartAbandoned(Exception):
  """Leaves a part at a client that failed; its argument is a ClientFailure."""


class RayWorker:
  """Actor: compiles what it is sent once, then runs parts of cohorts."""

  def __init__(
    self,
    num_threads: int,
    shows_gpus: bool,
    expected: Mapping[str, str],
    deterministic_ops: bool,
  ):
    """Fixes TensorFlow's threads and devices before it starts.

    TensorFlow sees the GPUs that Ray reserved, and none without any: all
    workers would take the same one.

    Raises:
      UserError: If the facts of this host differ from those expected.
    """
    require_same(expected)
    placement.limit_threads(num_threads)
    if not shows_gpus:
      tf.config.set_visible_devices([], 'GPU')
    placement.set_up_devices(deterministic_ops=deterministic_ops)
    self._spec = self._client_work = None

  def place(self) -> tuple[str, int]:
    """Returns name and address of this worker's host, and its process."""
    return host_name(), os.getpid()

  def add_up(
    self,
    spec: Any,
    broadcast: Sequence[np.ndarray],
    clients: Sequence[tuple[int, Any]],
    failed_once: frozenset[int],
  ) -> PartResult | ClientFailure:
    """Runs one part of a cohort; see `client_runner.ClientRunner.add_up`.

    Returns:
      The part's sums, or the client that raised for the first time: the part is
      then to be run again from its start, so that the order of its sum stays.
    """
    import ray

    if self._spec != spec:
      self._spec, self._client_work = spec, client_runner.ClientRunner(spec)
    outcome, outputs = RoundOutcome(), []

    def on_output(index, arrays):
      outputs.append((index, ray.put(arrays)))

    def on_first_failure(failure, error):
      raise _PartAbandoned(failure) from error

    with placement.on_accelerator():
      try:
        accumulator = self._client_work.add_up(
          [tf.convert_to_tensor(array) for array in broadcast],
          clients,
          outcome,
          on_first_failure=on_first_failure,
          on_output=on_output if spec.outputs else None,
          failed_once=failed_once,
        )
      except _PartAbandoned as abandoned:
        return abandoned.args[0]
    return PartResult([*map(values.as_array, accumulator)], outcome, outputs)


@dataclasses.dataclass
class _Part:
  """A part of the cohort on its way."""

  index: int
  clients: list[tuple[int, Any]]
  failed_once: set[int] = dataclasses.field(default_factory=set)
  num_lost_workers: int = 0
  avoided: Any = None
  """The worker on which a client of it failed last."""

  def describe(self) -> str:
    """Returns the part's clients: ids where loaders have them, or positions."""
    first, last = (
      getattr(client, 'client_id', index)
      for index, client in (self.clients[0], self.clients[-1])
    )
    if len(self.clients) == 1:
      return f'client {first!r} of the round'
    return f'clients {first!r} to {last!r} of the round'


class _Round:
  """Gives the parts of one cohort to workers until each has its sum."""

  def __init__(self, pool, sent, parts, options, outcome, told):
    self._pool = pool
    self._sent = sent
    self._num_parts = len(parts)
    self._waiting = collections.deque(parts)
    self._busy: dict[Any, tuple[_Part, Any]] = {}
    self._late = LateParts()
    self._done: dict[int, tuple[_Part, PartResult]] = {}
    self._options = options
    self._outcome = outcome
    self._told = told

  def results(self) -> Iterator[PartResult]:
    """Yields the results of the parts in order; see `partial_sums`."""
    import ray

    next_index = 0
    try:
      while next_index < self._num_parts:
        # A round goes on while workers that replace lost ones start.
        self._pool.admit()
        self._hand_out()
        ready, _ = ray.wait(
          [*self._busy, *self._pool.starting], timeout=POLL_SECONDS
        )
        if self._options.should_stop is not None:
          if self._options.should_stop():
            raise RoundInterrupted
        for reference in [r for r in ready if r in self._busy]:
          self._receive(reference)
        self._tell_of_late_parts()
        while next_index in self._done:
          part, result = self._done.pop(next_index)
          if not self._hand_on(part, result.outputs):
            self._waiting.appendleft(part)
            break
          self._outcome.counts.update(result.outcome.counts)
          self._outcome.failures.extend(result.outcome.failures)
          yield result
          next_index += 1
    finally:
      # Workers that are still at a part where the round ends early.
      if self._busy and self._pool.head_answers():
        for _, worker in self._busy.values():
          # What ended the round says more than that Ray is gone, too.
          with contextlib.suppress(ray.exceptions.RayError):
            self._pool.replace(worker)

  def _hand_out(self):
    """Gives waiting parts to idle workers."""
    import ray

    idle = self._idle()
    for _ in range(len(self._waiting)):
      part = self._waiting.popleft()
      choices = [worker for worker in idle if worker is not part.avoided]
      if not choices and len(self._pool.up) == 1:
        choices = idle
      if not choices:
        self._waiting.append(part)
        continue
      worker = choices[0]
      try:
        reference = worker.add_up.remote(
          *self._sent, part.clients, frozenset(part.failed_once)
        )
      # TensorFlow's: a dataset holds tensors that have no value to be pickled.
      except (TypeError, ray.cloudpickle.PicklingError, tf.errors.OpError) as e:
        types = sorted({type(client).__name__ for _, client in part.clients})
        raise TypeError(
          'Clients that workers run must be picklable, as a ClientLoader is, '
          f'found {", ".join(types)}.'
        ) from e
      idle.remove(worker)
      self._busy[reference] = (part, worker)
      self._late.begin(reference, len(part.clients))

  def _tell_of_late_parts(self):
    for reference, seconds in self._late.due():
      part, worker = self._busy[reference]
      if self._options.on_notice is not None:
        host, process = self._pool.up[worker]
        self._options.on_notice(
          f'the worker on host {host} has been busy with {part.describe()} for '
          f'{seconds:.0f} s, far longer than others take. If a disk hangs '
          f'there, end it with `kill -9 {process}`; its clients then run '
          'elsewhere.'
        )

  def _idle(self):
    busy = [worker for _, worker in self._busy.values()]
    return [worker for worker in self._pool.up if worker not in busy]

  def _receive(self, reference):
    """Keeps the result of a part, or has the part run again."""
    import ray

    # Without the one that was at this part, which may be dead.
    idle = self._idle()
    part, worker = self._busy.pop(reference)
    self._late.end(reference)
    try:
      result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
      raise FailedError(
        f'A worker process failed: {describe_error(error.cause)}'
      ) from error
    # It died, or was killed for its memory, or its machine is gone.
    except ray.exceptions.RayError as error:
      line = self._pool.lose(worker, idle)
      self._outcome.num_lost_workers += 1
      if self._options.on_notice is not None:
        self._options.on_notice(line)
      _count_loss(part, error)
      self._waiting.appendleft(part)
      return
    if isinstance(result, ClientFailure):
      self._retry(part, worker, result)
    else:
      self._done[part.index] = part, result

  def _retry(self, part, worker, failure):
    """Has a part run again, of which a client failed for the first time."""
    if not self._options.tolerates_failures:
      raise FailedError(
        f'Client {failure.client_index} of the round failed: {failure.message}'
      )
    host, _ = self._pool.up[worker]
    if host not in self._told and self._options.on_notice is not None:
      # A host that can read nothing would stay, and waste all it is given.
      self._told.add(host)
      self._options.on_notice(
        f'a client failed on host {host} and is tried again: '
        f'{failure.message}. This is said once per host.'
      )
    part.avoided = worker
    part.failed_once.add(failure.client_index)
    self._waiting.appendleft(part)

  def _hand_on(self, part, outputs):
    """Hands on the outputs of a part's clients; False: it is to be run again.

    Those handed on before are taken back then: a client may fail in its turn.
    """
    import ray

    for num_handed_on, (index, reference) in enumerate(outputs):
      try:
        arrays = ray.get(reference)
      # Gone with the worker that laid them into the store.
      except ray.exceptions.RayError as error:
        for earlier, _ in outputs[:num_handed_on]:
          self._options.on_client_output(earlier, None)
        _count_loss(part, error)
        return False
      self._options.on_client_output(index, arrays)
      # A copy of them would be alive with the next one.
      del arrays
    return True


def _count_loss(part, error):
  """Counts a worker that took a part along; raises FailedError if too many."""
  part.num_lost_workers += 1
  if part.num_lost_workers == MAX_LOST_WORKERS:
    raise FailedError(
      f'{MAX_LOST_WORKERS} worker processes died, one after the other, at '
      f'{part.describe()}. They may need more memory than there is: lower '
      '`--config.engine.num_workers`.'
    ) from error


def _put(value):
  """Lays a value into the object store of this node."""
  import ray

  try:
    return ray.put(value)
  except ray.exceptions.RayError as error:
    raise FailedError(
      "Ray's object store cannot take what the workers need: "
      f'{describe_error(error)}. Free memory and disk here, or use '
      '`--config.engine.ray_address` to join a Ray that was started with a '
      'larger --object-store-memory.'
    ) from error
