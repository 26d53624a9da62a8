"""Worker processes that share a cohort, on one machine or on a Ray cluster.

Each worker is a Ray actor that runs the clients' side of a round on parts of
the cohort. What the parts add up to does not depend on who ran them, nor on
which was ready first: the results are handed on in the order of the parts.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tff_fedfish.errors import FailedError, require
from tff_fedfish.runtime import ray_cluster, ray_hosts, values
from tff_fedfish.runtime.client_runner import divide_cohort
from tff_fedfish.runtime.ray_pool import (
  MAX_LOST_WORKERS,
  POLL_SECONDS,
  RayPool,
)
from tff_fedfish.runtime.round_options import (
  ClientFailure,
  RoundInterrupted,
  RoundOptions,
  RoundOutcome,
)


@dataclasses.dataclass
class _Part:
  """A part of the cohort on its way."""

  index: int
  clients: list[tuple[int, Any]]
  failed_once: set[int] = dataclasses.field(default_factory=set)
  num_lost_workers: int = 0
  avoided: Any = None
  """The worker on which it failed last."""


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
  ):
    """Starts nothing yet.

    Args:
      num_workers: Worker processes, >= 1.
      threads_per_worker: TensorFlow threads of each, >= 1.
      gpus_per_worker: GPUs that Ray reserves for each; None: 1 where the
        cluster has one for every worker, else 0.
      address: 'local' starts Ray here; 'auto' or HOST:PORT joins a cluster.
      paths: Files and directories that workers read. Hosts of a cluster must
        hold the same there as this one.

    Raises:
      ValueError: If `num_workers` is less than 1.
    """
    require(num_workers >= 1, 'num_workers', 'at least 1', num_workers)
    self._num_workers = num_workers
    self._threads = threads_per_worker
    self._gpus_per_worker = gpus_per_worker
    self._address = address
    self._paths = [*paths]
    self._has_joined = False
    self._pool: RayPool | None = None
    self._busy: dict[Any, tuple[_Part, Any]] = {}
    self._sent_spec: tuple[Any, Any] | None = None
    # Hosts on which a client has failed.
    self._told: set[ray_hosts.Host] = set()
    # Workers serve one round; another thread's waits for them.
    self._lock = threading.Lock()

  def __exit__(self, *_) -> None:
    self.close()

  def close(self) -> None:
    """Ends the workers, and Ray with its last user if it was started here."""
    pool, self._pool = self._pool, None
    self._busy.clear()
    self._sent_spec = None
    if pool is not None:
      pool.close()
    if self._has_joined:
      self._has_joined = False
      ray_cluster.leave()

  def require_alive(self) -> None:
    """Raises FailedError where the cluster's head is gone.

    To be called in long work between rounds: Ray would end the process.
    """
    if self._has_joined:
      ray_cluster.require_alive()

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
      FailedError: If the head of the cluster is gone, a client raises and
        failures are not tolerated, a part ends its worker again and again,
        workers cannot be set up or have no room, or Ray cannot hold what they
        are sent.
      TypeError: If a client cannot be pickled.
    """
    import ray

    with self._lock:
      self._start(options.should_stop)
      ray_cluster.require_alive()
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
          ray_cluster.require_alive()
          for loss in self._pool.lose_silent_hosts():
            waiting.extendleft(self._take_back(loss, options, outcome))
          # Those that replace others: a round goes on with the workers it has.
          self._pool.admit()
          self._hand_out(waiting, arguments)
          ready, _ = ray.wait(
            [*self._busy, *self._pool.answers], timeout=POLL_SECONDS
          )
          if options.should_stop is not None and options.should_stop():
            raise RoundInterrupted
          for reference in [r for r in ready if r in self._busy]:
            # Else taken back meanwhile, with its host.
            if reference in self._busy:
              waiting.extendleft(
                self._receive(reference, options, outcome, done)
              )
          while next_index in done:
            part, result = done.pop(next_index)
            if not self._hand_on(part, result.outputs, options):
              waiting.appendleft(part)
              break
            outcome.counts.update(result.outcome.counts)
            outcome.failures.extend(result.outcome.failures)
            yield [tf.convert_to_tensor(array) for array in result.accumulator]
            next_index += 1

  def _start(self, should_stop):
    """Makes the pool, unless there is one, and waits for all its workers."""
    if self._pool is not None:
      return
    if not self._has_joined:
      ray_cluster.join(self._address, self._num_workers)
      self._has_joined = True
    share = ray_cluster.share_of_worker(
      self._num_workers, self._gpus_per_worker, self._address
    )
    expected = {}
    # A Ray of our own has no other hosts.
    if self._address != 'local':
      expected = ray_hosts.require_same(self._paths, share)
    pool = RayPool(
      self._num_workers, share, num_threads=self._threads, expected=expected
    )
    try:
      pool.wait_for_all(should_stop)
    except BaseException:
      pool.close()
      raise
    self._pool = pool

  def _hand_out(self, waiting, arguments):
    """Gives waiting parts to idle workers."""
    import ray

    busy = [worker for _, worker in self._busy.values()]
    workers = self._pool.up
    idle = [worker for worker in workers if worker not in busy]
    for _ in range(len(waiting)):
      part = waiting.popleft()
      choices = [worker for worker in idle if worker is not part.avoided]
      if not choices and len(workers) == 1:
        choices = idle
      if not choices:
        waiting.append(part)
        continue
      worker = choices[0]
      try:
        reference = worker.add_up.remote(
          *arguments,
          part.clients,
          frozenset(part.failed_once),
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

  def _receive(self, reference, options, outcome, done):
    """Puts the result of a part into `done`; returns parts to be run again."""
    import ray

    part, worker = self._busy[reference]
    try:
      result = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
      del self._busy[reference]
      raise FailedError(
        f'A worker process failed: {ray_cluster.describe_error(error.cause)}'
      ) from error
    # It died, or was killed for its memory, or its machine is gone.
    except ray.exceptions.RayError as error:
      loss = self._pool.lose(worker)
      return self._take_back(loss, options, outcome, error)
    del self._busy[reference]
    if not isinstance(result, ClientFailure):
      done[part.index] = part, result
      return []
    if not options.tolerates_failures:
      raise FailedError(
        f'Client {result.client_index} of the round failed: {result.message}'
      )
    host = self._pool.host_of(worker)
    if host not in self._told and options.on_notice is not None:
      # A host that can read nothing would stay, and waste all it is given.
      self._told.add(host)
      options.on_notice(
        f'a client failed on host {host.name} and is tried again: '
        f'{result.message}. This is said once per host.'
      )
    part.avoided = worker
    part.failed_once.add(result.client_index)
    return [part]

  def _take_back(self, loss, options, outcome, error=None):
    """Counts and tells a loss; returns the parts that the workers had."""
    outcome.num_lost_workers += len(loss.workers)
    if options.on_notice is not None:
      options.on_notice(loss.text)
    taken = {
      reference: part
      for reference, (part, worker) in self._busy.items()
      if worker in loss.workers
    }
    for reference, part in taken.items():
      del self._busy[reference]
      _count_loss(part, error)
    return [*taken.values()]

  def _hand_on(self, part, outputs, options):
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
          options.on_client_output(earlier, None)
        _count_loss(part, error)
        return False
      options.on_client_output(index, arrays)
      # A copy of them would be alive with the next one.
      del arrays
    return True

  @contextlib.contextmanager
  def _abandoning_what_is_left(self):
    """Ends the workers that are still at a part when a round ends early."""
    try:
      yield
    finally:
      import ray

      busy, self._busy = self._busy, {}
      for _, worker in busy.values():
        if not ray_cluster.head_answers():
          break
        # What ended the round says more than that Ray is gone, too.
        with contextlib.suppress(ray.exceptions.RayError):
          self._pool.replace(worker)


def _count_loss(part, error):
  """Counts a worker that took a part along; raises FailedError if too many."""
  part.num_lost_workers += 1
  if part.num_lost_workers == MAX_LOST_WORKERS:
    indices = [index for index, _ in part.clients]
    raise FailedError(
      f'{MAX_LOST_WORKERS} worker processes died, one after the other, at '
      f'clients {indices[0]} to {indices[-1]} of the round. They may need '
      'more memory than there is: lower `--config.engine.num_workers`.'
    ) from error


def _put(value):
  """Lays a value into the object store of this node."""
  import ray

  try:
    return ray.put(value)
  except ray.exceptions.RayError as error:
    raise FailedError(
      "Ray's object store cannot take what the workers need: "
      f'{ray_cluster.describe_error(error)}. Free memory and disk here, or use '
      '`--config.engine.ray_address` to join a Ray that was started with a '
      'larger --object-store-memory.'
    ) from error
