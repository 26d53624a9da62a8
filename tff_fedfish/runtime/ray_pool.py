"""Connects to Ray and keeps worker processes up.

Ray itself notices processes and hosts that are gone. A worker that is lost is
replaced by another one, wherever Ray has room for it.

A process has one connection to Ray. A pool that finds none makes it, and ends
it when it closes. One that the program made with `ray.init` is used as it is.
"""

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.runtime.ray_hosts import host_facts
from tff_fedfish.runtime.ray_watch import (
  describe_error,
  error_at,
  raylet_address,
  tell_of_silence,
)
from tff_fedfish.runtime.round_options import RoundInterrupted

POLL_SECONDS = 0.2
"""How often a waiting driver asks whether it is to stop."""
MAX_LOST_WORKERS = 3
"""Workers that may die, one after the other, before the work is given up."""
# Until a line says that workers are not up, and until they are given up: a
# cluster may be busy, or start machines for them. Unit: seconds.
_NOTICE_SECONDS = 60.0
_LIMIT_SECONDS = 600.0
# Until the head of a cluster answers. Unit: seconds.
_CONNECT_SECONDS = 10.0
# Ray sends no statistics, and logs nothing to our standard error.
_ENVIRONMENT = {
  'RAY_USAGE_STATS_ENABLED': '0',
  'RAY_BACKEND_LOG_LEVEL': 'fatal',
  'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '0',
}
# Workers, which import TensorFlow before a line of ours runs.
_WORKER_ENVIRONMENT = {'TF_CPP_MIN_LOG_LEVEL': '3'}
# Heads of the Rays that pools of this process have started.
_own_heads: set[str] = set()


class RayPool:
  """Keeps a number of Ray actors up; to be closed in the end.

  A worker is up when it has answered. Until then it may wait for a place on a
  busy cluster, import TensorFlow, or fail in doing so.

  Attributes:
    up: Host of each worker that is up, idle or not.
    starting: Reference to the answer of each worker that is not up -> worker,
      time of the question, number of workers that died in its place.
  """

  def __init__(
    self,
    worker_class: type,
    num_workers: int,
    *,
    threads_per_worker: int = 1,
    gpus_per_worker: float | None = None,
    address: str = 'local',
    paths: Sequence[str] = (),
    deterministic_ops: bool = False,
  ):
    """Connects to Ray and asks for the workers; none is up yet.

    Args:
      worker_class: `ray_workers.RayWorker`.
      num_workers: Number of worker processes, >= 1.
      threads_per_worker: TensorFlow threads of each, >= 1.
      gpus_per_worker: GPUs that Ray reserves for each. `None`: 1 where the
        cluster has one for every worker, else 0.
      address: 'local' starts Ray here; 'auto' or HOST:PORT joins a cluster.
        Where the program has called `ray.init` itself, workers use that Ray.
      paths: Files and directories that workers read. Hosts of a cluster must
        hold the same there as this one.
      deterministic_ops: See `placement.set_up_devices`.

    Raises:
      UserError: If Ray is not installed, does not answer at the address, or is
        too small for the workers.
      FailedError: If Ray cannot start here.
    """
    require_ray(address)
    import ray

    self._num_workers = num_workers
    self.up: dict[Any, tuple[str, int]] = {}
    self.starting: dict[Any, tuple[Any, float, int]] = {}
    self._has_said_so = False
    self._is_closed = threading.Event()
    self._head: str | None = None
    self._has_own_ray = not ray.is_initialized()
    if self._has_own_ray:
      _connect(address, num_workers)
    try:
      self._head = ray.get_runtime_context().gcs_address
      if self._has_own_ray and address == 'local':
        _own_heads.add(self._head)
      # Workers in a Ray that was started for workers need not share its CPUs.
      cpus = 0.0 if self._head in _own_heads else 1.0
      gpus = _require_room(num_workers, cpus, gpus_per_worker, address)
      self._share = (cpus, gpus)
      actor = ray.remote(worker_class).options(
        num_cpus=cpus,
        num_gpus=gpus,
        runtime_env={'env_vars': _WORKER_ENVIRONMENT},
      )
      # A Ray of our own has no other hosts.
      expected = {}
      if address != 'local':
        expected = host_facts([os.path.abspath(path) for path in paths])
      self._make_worker = lambda: actor.remote(
        threads_per_worker, gpus > 0, expected, deterministic_ops
      )
      for _ in range(num_workers):
        self._add()
      watched = {
        "Ray's head": self._head,
        "This machine's raylet": raylet_address(),
      }
      threading.Thread(
        target=tell_of_silence, args=(watched, self._is_closed), daemon=True
      ).start()
    except BaseException:
      self.close()
      raise

  def wait_for_all(self, should_stop: Callable[[], bool] | None = None) -> None:
    """Returns when all workers are up; asks meanwhile whether to stop.

    Raises:
      RoundInterrupted: If `should_stop` says so.
      UserError, FailedError: As `admit`.
    """
    while self.starting:
      self.admit(POLL_SECONDS, num_wanted=self._num_workers)
      if should_stop is not None and should_stop():
        raise RoundInterrupted

  def admit(self, timeout_seconds: float = 0.0, num_wanted: int = 1) -> None:
    """Takes up a worker that has answered; waits for one until the timeout.

    After a minute a line on standard error says what workers wait for.

    Raises:
      UserError: If a host differs from this one.
      FailedError: If a worker cannot be set up, if workers die again and again
        while they start, or if after ten minutes fewer than wanted are up.
    """
    import ray

    ready, _ = ray.wait([*self.starting], timeout=timeout_seconds)
    for answer in ready:
      self._receive(answer)
    now = time.monotonic()
    waits = [now - since for _, since, _ in self.starting.values()]
    if not waits:
      self._has_said_so = False
    elif max(waits) >= _NOTICE_SECONDS and not self._has_said_so:
      self._has_said_so = True
      print(
        f'fedfish: {self._count()} are up after {max(waits):.0f} s; waiting '
        f'for the others. {self._describe_room()}',
        file=sys.stderr,
      )
    num_possible = len(self.up) + sum(wait < _LIMIT_SECONDS for wait in waits)
    if num_possible < num_wanted:
      raise FailedError(
        f'Only {self._count()} are up after {_LIMIT_SECONDS:g} s. '
        f'{self._describe_room()} Lower num_workers, or wait until there is '
        'room for them.'
      )

  def lose(self, worker: Any, idle: Collection[Any]) -> str:
    """Replaces a worker that died; returns a line that says so.

    Idle workers must answer again before they count as up: their host may be
    gone, too.
    """
    host, _ = self.up[worker]
    self.replace(worker)
    line = (
      f'a worker on host {host} died. Its clients run again; {self._count()} '
      'are left.'
    )
    for other in idle:
      del self.up[other]
      self._ask(other)
    return line

  def replace(self, worker: Any) -> None:
    """Ends a worker that was up, if it lives, and asks for another."""
    import ray

    self.up.pop(worker, None)
    ray.kill(worker)
    self._add()

  def is_connected(self) -> bool:
    """Whether this process is still connected to the Ray of the workers."""
    import ray

    return ray.is_initialized() and self._head in (
      None,
      ray.get_runtime_context().gcs_address,
    )

  def head_answers(self) -> bool:
    """Whether something listens at the head; Ray would wait for a minute."""
    return self._head is None or error_at(self._head) is None

  def close(self) -> None:
    """Ends all workers, and Ray if it was started for them."""
    import ray

    try:
      # The program may have shut Ray down, and the workers with it.
      is_connected = self.is_connected()
      if is_connected and self.head_answers():
        for worker in [
          *self.up,
          *(entry[0] for entry in self.starting.values()),
        ]:
          ray.kill(worker)
      self.up.clear()
      self.starting.clear()
      if self._has_own_ray and self._head in _own_heads:
        # Its silence is no news.
        self._is_closed.set()
        _own_heads.remove(self._head)
      if self._has_own_ray and is_connected:
        ray.shutdown()
    finally:
      # Last: where all that waits for a silent head, it is still said.
      self._is_closed.set()

  def _add(self, num_died=0):
    self._ask(self._make_worker(), num_died)

  def _ask(self, worker, num_died=0):
    self.starting[worker.place.remote()] = worker, time.monotonic(), num_died

  def _receive(self, answer):
    """Takes up the worker that answered, or replaces one that died."""
    import ray

    worker, _, num_died = self.starting.pop(answer)
    try:
      self.up[worker] = ray.get(answer)
    except ray.exceptions.RayError as error:
      ray.kill(worker)
      self._add(num_died + 1)
      is_lost = isinstance(error, ray.exceptions.RayActorError)
      if not is_lost or error.actor_init_failed:
        raise _set_up_error(error) from error
      if num_died + 1 >= MAX_LOST_WORKERS:
        raise FailedError(
          f'{MAX_LOST_WORKERS} worker processes died, one after the other, '
          'while they started. They may need more memory than there is: lower '
          '`--config.engine.num_workers`. Ray says why in /tmp/ray/'
          'session_latest/logs of their hosts; hosts must not share /tmp/ray.'
        ) from error

  def _count(self):
    return (
      f'{len(self.up)} of {self._num_workers} workers '
      '(`--config.engine.num_workers`)'
    )

  def _describe_room(self):
    import ray

    free = ray.available_resources()
    cpus, gpus = self._share
    return (
      f'Each takes {cpus:g} CPU and {gpus:g} GPU; {free.get("CPU", 0):g} CPU '
      f'and {free.get("GPU", 0):g} GPU are free.'
    )


def require_ray(address: str) -> None:
  """Checks that Ray is installed and something answers at an address.

  Ray itself would try for minutes. 'local' and 'auto' name nothing that could
  answer.

  Raises:
    UserError: If not.
  """
  if importlib.util.find_spec('ray') is None:
    raise UserError(
      "`--config.engine.kind='ray'` needs the package ray, which is not "
      "installed here. Install it, or use 'in_process'."
    )
  if address in ('local', 'auto'):
    return
  # Workers use the Ray that a program is connected to, wherever it is.
  if 'ray' in sys.modules and sys.modules['ray'].is_initialized():
    return
  error = error_at(address, _CONNECT_SECONDS)
  if error is not None:
    raise _wrong_address(address, error) from error


def _set_up_error(error):
  """Returns the exception to raise for a worker whose `__init__` raised."""
  import ray

  # Ray wraps the exception in one that knows the place where it was raised,
  # and that in one that says that the actor is dead.
  place = ''
  for outer in (error, *error.args[:1]):
    if isinstance(outer, ray.exceptions.RayTaskError):
      error, place = outer.cause, f' on {outer.ip}'
      break
  if isinstance(error, UserError):
    return UserError(str(error))
  return FailedError(
    f'A worker process{place} could not be set up: {describe_error(error)}. '
    'Every machine needs the Python environment that this one has.'
  )


def _require_room(num_workers, cpus, gpus_per_worker, address):
  """Returns the GPUs to reserve for each worker.

  Raises:
    UserError: If Ray has less than all workers need, whoever uses it now.
  """
  import ray

  total = ray.cluster_resources()
  if gpus_per_worker is None:
    num_gpus = total.get('GPU', 0)
    gpus_per_worker = 1.0 if num_gpus >= num_workers else 0.0
    if num_gpus and not gpus_per_worker:
      print(
        f'fedfish: note: no worker uses a GPU: there are {num_gpus:g} for '
        f'{num_workers} workers. Lower `--config.engine.num_workers`, or share '
        'them, such as by `--config.engine.gpus_per_worker=0.5`.',
        file=sys.stderr,
      )
  for kind, option, wanted in (
    ('CPU', 'num_workers', cpus),
    ('GPU', 'gpus_per_worker', gpus_per_worker),
  ):
    if total.get(kind, 0) < num_workers * wanted:
      raise UserError(
        f'{num_workers} workers (`--config.engine.num_workers`) need '
        f'{num_workers * wanted:g} {kind}, but Ray at {address!r} has '
        f'{total.get(kind, 0):g}. Lower `--config.engine.{option}`, or add '
        'machines.'
      )
  return gpus_per_worker


def _connect(address, num_workers):
  """Starts Ray or joins it, without its own words and signal handler."""
  import ray

  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  options = dict(logging_level=logging.CRITICAL, log_to_driver=False)
  if address == 'local':
    options |= dict(num_cpus=num_workers, include_dashboard=False)
  handler = signal.getsignal(signal.SIGTERM)
  try:
    with _without_native_stderr():
      ray.init(address=address, **options)
  # Of any type: some of what Ray raises is a plain Exception.
  except Exception as error:
    # Parts of it may run.
    ray.shutdown()
    if address != 'local':
      raise _wrong_address(address, error) from error
    advice = 'Look for room in /tmp and memory'
    if 'AF_UNIX' in str(error):
      # The path of a socket has at most 107 bytes.
      advice = 'Set TMPDIR to a shorter path'
    raise FailedError(
      f'Ray cannot start on this machine: {describe_error(error)}. {advice}, '
      "or use `--config.engine.kind='in_process'`."
    ) from error
  finally:
    # Ray replaces our handler when it starts in the main thread.
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and handler is not None:
      signal.signal(signal.SIGTERM, handler)


def _wrong_address(address, error):
  return UserError(
    '`--config.engine.ray_address` must be local, auto or the HOST:PORT of a '
    f'running Ray cluster, found {address!r} ({describe_error(error)}). Start '
    "one with `ray start --head`, or use 'local'."
  )


@contextlib.contextmanager
def _without_native_stderr() -> Iterator[None]:
  """Hides a line of Ray's library, which says that it is to log nothing."""
  sys.stderr.flush()
  kept = os.dup(2)
  try:
    with open(os.devnull, 'wb') as nowhere:
      os.dup2(nowhere.fileno(), 2)
      yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
