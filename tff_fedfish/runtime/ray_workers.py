"""Worker processes that share a cohort, on one machine or on a Ray cluster.

Each worker is a Ray actor that runs the clients' side of a round on parts of
the cohort. The parts' sums are handed on in order, whichever is ready first.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_fedfish.errors import FailedError, require
from tff_fedfish.late import module
from tff_fedfish.runtime import client_runner, placement, ray_pool, values
from tff_fedfish.runtime.ray_hosts import host_name, require_same
from tff_fedfish.runtime.ray_watch import describe_error, late_seconds
from tff_fedfish.runtime.round_options import (
  ClientFailure,
  RoundInterrupted,
  RoundOptions,
  RoundOutcome,
)

ray = module('ray')


class RayWorkers(contextlib.AbstractContextManager):
  """Runs the parts of cohorts on Ray actors; to be closed in the end.

  Workers start at the first round, compile what they are sent, and are kept.
  One round at a time: another thread's waits.
  """

  def __init__(self, num_workers: int, **settings: Any):
    """Starts nothing yet; for the settings see `ray_pool.PoolSettings`.

    Raises:
      ValueError: If there is no worker.
    """
    require(num_workers >= 1, 'num_workers', '>= 1', num_workers)
    self._settings = ray_pool.PoolSettings(num_workers, **settings)
    self._pool: ray_pool.RayPool | None = None
    self._sent_spec: tuple[Any, Any] | None = None
    self._lock = threading.RLock()

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends the workers, and Ray if it was started for them."""
    pool, self._pool, self._sent_spec = self._pool, None, None
    if pool is not None:
      pool.close()

  def start(self, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Starts the workers, unless they run, and waits until all are up.

    Raises:
      RoundInterrupted, UserError, FailedError: As `partial_sums`.
    """
    with self._lock:
      if self._pool is not None:
        if self._pool.is_connected():
          return
        # The program has shut Ray down, and the workers with it.
        self.close()
      pool = ray_pool.RayPool(RayWorker, self._settings)
      try:
        pool.wait_for_all(should_stop)
      except BaseException:
        pool.close()
        raise
      self._pool = pool

  def partial_sums(
    self,
    spec: Any,
    broadcast: list[tf.Tensor],
    clients: Sequence[Any],
    options: RoundOptions,
    outcome: RoundOutcome,
  ) -> Iterator[list[tf.Tensor]]:
    """Yields the partial sums of a cohort in order.

    Workers compile the spec, a `client_runner.ClientWorkSpec`. For the other
    arguments see `client_runner.partial_sums`.

    Raises:
      RoundInterrupted: If `options.should_stop` says so, also while workers
        start; the work in hand is given up with its workers.
      UserError: If Ray does not answer or is too small, or a host differs.
      FailedError: If a client raises and failures are not tolerated, workers
        die or find no room, or Ray cannot hold what they are sent.
      TypeError: If a client cannot be pickled.
    """
    with self._lock:
      self.start(options.should_stop)
      if self._sent_spec is None or self._sent_spec[0] != spec:
        self._sent_spec = (spec, _put(spec))
      sent = (self._sent_spec[1], _put([*map(values.as_array, broadcast)]))
      del broadcast
      divided = client_runner.divide_cohort(
        len(clients), options.num_partial_sums
      )
      parts = [_Part([(i, clients[i]) for i in part]) for part in divided]
      round_ = _Round(self._pool, sent, parts, options, outcome)
      with contextlib.closing(round_.results()) as results:
        for result in results:
          yield [*map(tf.convert_to_tensor, result.accumulator)]


class PartResult(NamedTuple):
  """Sum over a part of a cohort, as arrays, with its counts and failures."""

  accumulator: list[np.ndarray]
  outcome: RoundOutcome
  outputs: Sequence[tuple[int, Any]] = ()
  """Index of each client, and a reference to its output in Ray's object store:
  only one client's need be in the driver's memory."""


class _FirstFailure(Exception):
  """Leaves a part at a client that failed; its argument is a ClientFailure."""


class RayWorker:
  """Actor: compiles what it is sent once, then runs parts of cohorts."""

  def __init__(
    self,
    settings: ray_pool.PoolSettings,
    shows_gpus: bool,
    expected: Mapping[str, str],
  ):
    """Fixes TensorFlow's threads and devices before it starts.

    Without GPUs that Ray reserved, all workers would take the same one.

    Raises:
      UserError: If the facts of this host differ from those expected.
    """
    require_same(expected)
    placement.limit_threads(settings.threads_per_worker)
    if not shows_gpus:
      tf.config.set_visible_devices([], 'GPU')
    placement.set_up_devices(deterministic_ops=settings.deterministic_ops)
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

    Returns a client that raises for the first time. The part is then to be run
    again from its start, so that the order of its sum stays.
    """
    if self._spec != spec:
      self._spec, self._client_work = spec, client_runner.ClientRunner(spec)
    outcome, outputs = RoundOutcome(), []

    def on_output(index, arrays):
      outputs.append((index, ray.put(arrays)))

    def on_first_failure(failure, error):
      raise _FirstFailure(failure) from error

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
      except _FirstFailure as raised:
        return raised.args[0]
    return PartResult([*map(values.as_array, accumulator)], outcome, outputs)


@dataclasses.dataclass(eq=False)
class _Part:
  """A part of the cohort on its way."""

  clients: list[tuple[int, Any]]
  failed_once: set[int] = dataclasses.field(default_factory=set)
  num_lost_workers: int = 0
  worker: Any = None
  """The worker that it was given to last, at `start`. Unit: seconds."""
  start: float = 0.0
  told: float = 0.0
  """Seconds since then at the last line on it; 0 before one."""
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

  def __init__(self, pool, sent, parts, options, outcome):
    self._pool, self._sent, self._parts = pool, sent, parts
    self._options, self._outcome = options, outcome
    self._waiting = [*parts]
    self._busy: dict[Any, _Part] = {}
    self._done: dict[_Part, PartResult] = {}
    # Of each part that has ended.
    self._seconds_per_client: list[float] = []

  def results(self) -> Iterator[PartResult]:
    """Yields the results of the parts in order; see `partial_sums`."""
    try:
      for part in self._parts:
        while part not in self._done or not self._hand_on(part):
          self._advance()
        result = self._done.pop(part)
        self._outcome.counts.update(result.outcome.counts)
        self._outcome.failures.extend(result.outcome.failures)
        yield result
    finally:
      # Workers that are still at a part where the round ends early.
      if self._busy and self._pool.head_answers():
        for part in self._busy.values():
          # The first error is the cause; ignore Ray's.
          with contextlib.suppress(ray.exceptions.RayError):
            self._pool.replace(part.worker)

  def _advance(self):
    """Gives parts to workers, and waits a moment for results."""
    # A round goes on while workers that replace lost ones start.
    self._pool.admit()
    self._hand_out()
    ready, _ = ray.wait(
      [*self._busy, *self._pool.starting], timeout=ray_pool.POLL_SECONDS
    )
    if self._options.should_stop():
      raise RoundInterrupted
    for reference in [r for r in ready if r in self._busy]:
      self._receive(reference)
    self._tell_of_late_parts()

  def _hand_out(self):
    """Gives waiting parts to idle workers."""
    idle = self._idle()
    for part in [*self._waiting]:
      is_alone = len(self._pool.up) == 1
      choices = [w for w in idle if is_alone or w is not part.avoided]
      if choices:
        self._waiting.remove(part)
        idle.remove(choices[0])
        self._send(part, choices[0])

  def _send(self, part, worker):
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
    part.worker, part.start, part.told = worker, time.monotonic(), 0.0
    self._busy[reference] = part

  def _tell_of_late_parts(self):
    for part in self._busy.values():
      seconds = time.monotonic() - part.start
      if seconds >= late_seconds(
        len(part.clients), self._seconds_per_client, part.told
      ):
        part.told = seconds
        host, process = self._pool.up[part.worker]
        self._options.on_notice(
          f'the worker on host {host} has been busy with {part.describe()} for '
          f'{seconds:.0f} s, far longer than others take. If a disk hangs '
          f'there, end it with `kill -9 {process}`; its clients then run '
          'elsewhere.'
        )

  def _idle(self):
    busy = [part.worker for part in self._busy.values()]
    return [worker for worker in self._pool.up if worker not in busy]

  def _receive(self, reference):
    """Keeps the result of a part, or has the part run again."""
    # Without the one that was at this part, which may be dead.
    idle = self._idle()
    part = self._busy.pop(reference)
    seconds = time.monotonic() - part.start
    self._seconds_per_client.append(seconds / len(part.clients))
    try:
      result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
      raise FailedError(
        f'A worker process failed: {describe_error(error.cause)}'
      ) from error
    # It died, or was killed for its memory, or its machine is gone.
    except ray.exceptions.RayError as error:
      self._outcome.num_lost_workers += 1
      self._options.on_notice(self._pool.lose(part.worker, idle))
      self._run_again(part, error)
      return
    if isinstance(result, ClientFailure):
      self._retry(part, result)
    else:
      self._done[part] = result

  def _retry(self, part, failure):
    """Has a part run again, of which a client failed for the first time."""
    if not self._options.tolerates_failures:
      raise FailedError(
        f'Client {failure.client_index} of the round failed: {failure.message}'
      )
    host, _ = self._pool.up[part.worker]
    if host not in self._pool.told:
      self._pool.told.add(host)
      self._options.on_notice(
        f'a client failed on host {host} and is tried again: '
        f'{failure.message}. This is said once per host.'
      )
    part.avoided = part.worker
    part.failed_once.add(failure.client_index)
    self._waiting.insert(0, part)

  def _hand_on(self, part):
    """Hands on the clients' outputs; False: the part is to be run again."""
    outputs = self._done[part].outputs
    for num_handed_on, (index, reference) in enumerate(outputs):
      try:
        arrays = ray.get(reference)
      # Gone with the worker that laid them into the store.
      except ray.exceptions.RayError as error:
        # A client may fail in its turn.
        for earlier, _ in outputs[:num_handed_on]:
          self._options.on_client_output(earlier, None)
        self._run_again(part, error)
        return False
      self._options.on_client_output(index, arrays)
      # A copy of them would be alive with the next one.
      del arrays
    return True

  def _run_again(self, part, error):
    """Has a part run again that was lost with its worker."""
    self._done.pop(part, None)
    self._waiting.insert(0, part)
    part.num_lost_workers += 1
    if part.num_lost_workers == ray_pool.MAX_LOST_WORKERS:
      raise FailedError(
        f'{part.num_lost_workers} worker processes died, one after the other, '
        f'at {part.describe()}. They may need more memory than there is: lower '
        '`--config.engine.num_workers`.'
      ) from error


def _put(value):
  """Lays a value into the object store of this node."""
  try:
    return ray.put(value)
  except ray.exceptions.RayError as error:
    raise FailedError(
      "Ray's object store cannot take what the workers need: "
      f'{describe_error(error)}. Free memory and disk here, or use '
      '`--config.engine.ray_address` to join a Ray that was started with a '
      'larger --object-store-memory.'
    ) from error
