"""The worker processes of the Ray engine, and the pool that keeps them up.

A worker is up when it has answered for the first time. Until then it may wait
for a place on a busy cluster, import TensorFlow, or fail in doing so. A pool
keeps the number of workers that it was made with: one that is lost is replaced.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_fedfish.errors import FailedError
from tff_fedfish.runtime import ray_cluster, ray_hosts, ray_watch
from tff_fedfish.runtime.ray_cluster import Share, describe_error
from tff_fedfish.runtime.ray_hosts import Contents, Host
from tff_fedfish.runtime.round_options import (
  ClientFailure,
  RoundInterrupted,
  RoundOutcome,
)

# How often a waiting driver looks whether it is to stop. Unit: seconds.
POLL_SECONDS = 0.2
# Workers that may die, one after the other, before the work is given up.
MAX_LOST_WORKERS = 3
# Until it is said that workers are not up, and until they are given up: a
# cluster may be busy, or start machines for them. Unit: seconds.
_NOTICE_SECONDS = 60.0
_LIMIT_SECONDS = 600.0


class PartResult(NamedTuple):
  """Sum over a part of a cohort, as arrays."""

  accumulator: list[np.ndarray]
  outcome: RoundOutcome
  """Counts and failures of the part's clients."""
  outputs: Sequence[tuple[int, Any]] = ()
  """Index of each client, and a reference to its output in Ray's object store:
  only one client's need be in the driver's memory."""


class Loss(NamedTuple):
  """Workers that were lost at once; others have been asked for."""

  workers: Sequence[Any]
  """The workers."""
  text: str
  """Event, and how many workers are left."""


class _PartAbandoned(Exception):
  """Leaves a part at a client that failed; its argument is a ClientFailure."""


class RayWorker:
  """Actor: compiles what it is sent once, then runs parts of cohorts."""

  def __init__(
    self, num_threads: int, shows_gpus: bool, expected: Mapping[str, Contents]
  ):
    """Fixes TensorFlow's threads and devices, before it starts.

    The GPUs that Ray reserved are shown to it; without any reserved, all
    workers would take the same one.

    Raises:
      FailedError: If this host does not hold what is expected, by path.
    """
    ray_hosts.require_here(expected)
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
    import tensorflow as tf

    from tff_fedfish.runtime import placement

    placement.limit_threads(num_threads)
    if not shows_gpus:
      tf.config.set_visible_devices([], 'GPU')
    placement.share_accelerators()
    # What is missing on this machine shows here, not at the first part.
    from tff_fedfish.runtime import client_runner  # noqa: F401

    self._spec = self._client_work = None

  def node_id(self) -> str:
    """Returns Ray's id of this worker's host."""
    return ray_hosts.own_node_id()

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
    import tensorflow as tf

    from tff_fedfish.runtime import client_runner, placement, values

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


class RayPool:
  """Ray actors; to be closed in the end."""

  def __init__(
    self,
    num_workers: int,
    share: Share,
    *,
    num_threads: int,
    expected: Mapping[str, Contents] | None = None,
  ):
    """Asks Ray for the workers, each with its share; none is up yet.

    Each has `num_threads` TensorFlow threads, and reads what is expected, by
    path; None: that is not compared.
    """
    import ray

    self._num_workers = num_workers
    self._share = share
    self._num_threads = num_threads
    self._worker_class = ray.remote(RayWorker)
    self._expected = dict(expected or {})
    # Worker -> its host.
    self._up: dict[Any, Host] = {}
    # By node id, of hosts that have had workers.
    self._watches: dict[str, ray_watch.Watch] = {}
    # Node ids of hosts that get no workers.
    self._gone: set[str] = set()
    # By the reference to its first answer: a worker, and since when it starts.
    self._starting: dict[Any, tuple[Any, float]] = {}
    self._num_died_starting = 0
    self._has_said_so = False
    for _ in range(num_workers):
      self._add()

  @property
  def up(self) -> list[Any]:
    """The workers that are up, idle or not."""
    return list(self._up)

  @property
  def answers(self) -> list[Any]:
    """References to the first answers of the workers that are not up."""
    return list(self._starting)

  def wait_for_all(self, should_stop: Callable[[], bool] | None = None) -> None:
    """Returns when all workers are up; asks meanwhile whether to stop.

    Raises:
      RoundInterrupted: If `should_stop` says so.
      FailedError: As `admit`, and if one is not up after `_LIMIT_SECONDS`, or
        the head of the cluster is gone.
    """
    while self._starting:
      ray_cluster.require_alive()
      self.admit(POLL_SECONDS)
      if should_stop is not None and should_stop():
        raise RoundInterrupted
      if max(self._waits(), default=0) >= _LIMIT_SECONDS:
        raise self._too_late()

  def admit(self, timeout_seconds: float = 0.0) -> None:
    """Takes up a worker that has answered, if one has.

    It waits for `timeout_seconds`. After `_NOTICE_SECONDS` in all it says on
    standard error what is waited for.

    Raises:
      FailedError: If a worker cannot be set up, if workers die again and again
        while they start, or if after `_LIMIT_SECONDS` none at all is up.
    """
    import ray

    self._readmit_hosts()
    ready, _ = ray.wait(self.answers, timeout=timeout_seconds)
    for answer in ready:
      self._receive(answer)
    waits = self._waits()
    if not waits:
      self._has_said_so = False
    elif max(waits) >= _NOTICE_SECONDS and not self._has_said_so:
      self._has_said_so = True
      print(
        f'fedfish: {self._count()} are up after {max(waits):.0f} s; waiting '
        f'for the others. {self._share.describe()}',
        file=sys.stderr,
      )
    if not self._up and min(waits) >= _LIMIT_SECONDS:
      raise self._too_late()

  def replace(self, worker: Any) -> None:
    """Ends a worker that was up, if it lives, and asks for another.

    Raises:
      FailedError: If the head of the cluster is gone.
    """
    import ray

    ray_cluster.wait_for_head()
    del self._up[worker]
    ray.kill(worker)
    self._add()

  def host_of(self, worker: Any) -> Host:
    """Returns where a worker is that is up."""
    return self._up[worker]

  def lose(self, worker: Any) -> Loss:
    """Replaces a worker that died, or all of its host if that is gone."""
    host = self._up[worker]
    if not ray_watch.answers(host.address):
      return self._lose_host(host)
    self.replace(worker)
    return Loss(
      [worker],
      f'a worker on host {host.name} died. Its clients run again; '
      f'{self._count()} are left.',
    )

  def lose_silent_hosts(self) -> list[Loss]:
    """Replaces the workers on hosts that no longer answer."""
    hosts = {h.node_id: h for h in self._up.values()}
    return [
      self._lose_host(host)
      for node_id, host in hosts.items()
      if self._watches[node_id].is_gone
    ]

  def close(self) -> None:
    """Ends all workers."""
    import ray

    workers = [*self._up, *(worker for worker, _ in self._starting.values())]
    self._up.clear()
    self._starting.clear()
    for watch in self._watches.values():
      watch.close()
    # They have ended with Ray where the program has shut it down, and end with
    # a head that is gone.
    if ray.is_initialized() and ray_cluster.head_answers():
      for worker in workers:
        ray.kill(worker)

  def _add(self):
    share, labels = self._share, {}
    if self._gone:
      # Ray itself may not know yet that a host is gone.
      labels['ray.io/node-id'] = f'!in({",".join(sorted(self._gone))})'
    worker_class = self._worker_class.options(
      num_cpus=share.cpus,
      num_gpus=share.gpus,
      max_restarts=0,
      label_selector=labels,
    )
    worker = worker_class.remote(
      self._num_threads, share.gpus > 0, self._expected
    )
    answer = worker.node_id.remote()
    self._starting[answer] = worker, time.monotonic()

  def _lose_host(self, host):
    workers = [w for w, other in self._up.items() if other == host]
    self._gone.add(host.node_id)
    # Answers from now on say that it is back.
    self._watches[host.node_id].close()
    self._watches[host.node_id] = ray_watch.Watch(host.address)
    for worker in workers:
      self.replace(worker)
    num = len(workers)
    return Loss(
      workers,
      f'host {host.name} was lost with {num} worker{"s" * (num > 1)}. Its '
      f'clients run again; {self._count()} are left.',
    )

  def _readmit_hosts(self):
    """Lets hosts have workers again that have come back."""
    import ray

    back = {n for n in self._gone if self._watches[n].has_answered}
    if not back:
      return
    self._gone -= back
    # They were asked for on other hosts, which may have no room.
    waiting = [worker for worker, _ in self._starting.values()]
    self._starting.clear()
    for worker in waiting:
      ray.kill(worker)
      self._add()

  def _receive(self, answer):
    import ray

    worker, _ = self._starting.pop(answer)
    try:
      node_id = ray.get(answer)
    except ray.exceptions.RayError as error:
      self._add()
      # Its process or machine is gone, for no reason of its own.
      is_lost = isinstance(error, ray.exceptions.RayActorError)
      if is_lost and not error.actor_init_failed:
        self._num_died_starting += 1
        if self._num_died_starting < MAX_LOST_WORKERS:
          return
        self._num_died_starting = 0
        raise FailedError(
          f'{MAX_LOST_WORKERS} worker processes died, one after the other, '
          'while they started. They may need more memory than there is: lower '
          '`--config.engine.num_workers`. Ray says why in /tmp/ray/'
          'session_latest/logs of their hosts; hosts must not share /tmp/ray.'
        ) from error
      raise _set_up_error(error) from error
    self._num_died_starting = 0
    self._up[worker] = self._host(node_id)
    if node_id not in self._watches:
      self._watches[node_id] = ray_watch.Watch(self._up[worker].address)

  def _host(self, node_id):
    for host in self._up.values():
      if host.node_id == node_id:
        return host
    # Also one that Ray takes for dead since: its watch will say so, too.
    return ray_hosts.find(node_id)

  def _waits(self):
    """Returns for how many seconds each worker has not answered."""
    now = time.monotonic()
    return [now - since for _, since in self._starting.values()]

  def _count(self):
    return (
      f'{len(self._up)} of {self._num_workers} workers '
      '(`--config.engine.num_workers`)'
    )

  def _too_late(self):
    return FailedError(
      f'Only {self._count()} are up after {_LIMIT_SECONDS:g} s. '
      f'{self._share.describe()} Lower num_workers, or wait until there is '
      'room for them.'
    )


def _set_up_error(error):
  """Returns what to raise for a worker whose `__init__` raised."""
  import ray

  # Ray hands over the exception within one that knows where it was raised,
  # within one that says that the actor is dead.
  place = ''
  for outer in (error, *error.args[:1]):
    if isinstance(outer, ray.exceptions.RayTaskError):
      place = f' on {outer.ip}' if getattr(outer, 'ip', None) else ''
      error = outer.cause
      break
  if isinstance(error, FailedError):
    # In its own words.
    return FailedError(f'A worker process cannot work on {error}.')
  return FailedError(
    f'A worker process{place} could not be set up: {describe_error(error)}. '
    'Every machine needs the Python environment that this one has.'
  )
