"""Connects to Ray and keeps worker processes up.

A worker that is lost is replaced, wherever Ray has room. A process has one
connection to Ray: a pool that finds none makes it, and ends it when it closes.
"""

import contextlib
import dataclasses
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
from tff_fedfish.late import module
from tff_fedfish.runtime.ray_hosts import host_facts
from tff_fedfish.runtime.ray_watch import (
  describe_error,
  error_at,
  raylet_address,
  tell_of_silence,
)
from tff_fedfish.runtime.round_options import RoundInterrupted

ray = module('ray')

POLL_SECONDS = 0.2
"""How often a waiting driver asks whether it is to stop."""
MAX_LOST_WORKERS = 3
"""Workers that die one after the other until the work is given up."""
# Until a line says that workers are not up, until they are given up, and until
# the head of a cluster is. Unit: seconds.
_NOTICE_SECONDS = 60.0
_LIMIT_SECONDS = 600.0
_CONNECT_SECONDS = 10.0
# Ray sends no statistics, and logs nothing to our standard error.
_ENVIRONMENT = {
  'RAY_USAGE_STATS_ENABLED': '0',
  'RAY_BACKEND_LOG_LEVEL': 'fatal',
  'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '0',
}
# Workers, which import TensorFlow before a line of ours runs.
_WORKER_ENVIRONMENT = {'TF_CPP_MIN_LOG_LEVEL': '3'}


@dataclasses.dataclass(frozen=True)
class PoolSettings:
  """Workers, and the Ray that runs them."""

  num_workers: int
  """Number of worker processes, >= 1."""
  threads_per_worker: int = 1
  """TensorFlow threads of each, >= 1."""
  gpus_per_worker: float | None = None
  """GPUs that Ray reserves for each; None: 1 if there are enough, else 0."""
  address: str = 'local'
  """'local' starts Ray here; 'auto' or HOST:PORT joins a cluster. A Ray that
  the program has started is used in any case."""
  paths: Sequence[str] = ()
  """Files and directories that workers read. Hosts of a cluster must hold the
  same there as this one."""
  deterministic_ops: bool = False
  """See `placement.set_up_devices`."""


class RayPool:
  """Keeps a number of Ray actors up; to be closed in the end.

  A worker is up when it has answered. Until then it may wait for a place on a
  busy cluster, or import TensorFlow.

  Attributes:
    up: Host of each worker that is up, idle or not.
    starting: Reference to the answer of each worker that is not up -> worker,
      time of the question, number of workers that died in its place.
    told: Hosts of which a line has said that a client failed there.
  """

  def __init__(self, worker_class: type, settings: PoolSettings):
    """Connects to Ray and asks for `RayWorker`s; none is up yet.

    Raises:
      UserError: If Ray is not installed, does not answer, or is too small.
      FailedError: If Ray cannot start here.
    """
    require_ray(settings.address)
    self.up: dict[Any, tuple[str, int]] = {}
    self.starting: dict[Any, tuple[Any, float, int]] = {}
    self.told: set[str] = set()
    self._settings = settings
    self._has_said_so = False
    self._is_closed = threading.Event()
    self._has_own_ray = not ray.is_initialized()
    self._has_started_ray = self._has_own_ray and settings.address == 'local'
    if self._has_own_ray:
      _connect(settings.address, settings.num_workers)
    self._head = ray.get_runtime_context().gcs_address
    try:
      self._ask_for_workers(worker_class)
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

  def _ask_for_workers(self, worker_class):
    settings = self._settings
    # A Ray of our own is for these workers.
    cpus = 0.0 if self._has_started_ray else 1.0
    gpus = _require_room(settings, cpus)
    self._share = (cpus, gpus)
    actor = ray.remote(worker_class).options(
      num_cpus=cpus,
      num_gpus=gpus,
      runtime_env={'env_vars': _WORKER_ENVIRONMENT},
    )
    # A Ray of our own has no other hosts.
    expected = {}
    if settings.address != 'local':
      expected = host_facts([*map(os.path.abspath, settings.paths)])
    self._make_worker = lambda: actor.remote(settings, gpus > 0, expected)
    for _ in range(settings.num_workers):
      self._ask()

  def wait_for_all(self, should_stop: Callable[[], bool]) -> None:
    """Returns when all workers are up; asks meanwhile whether to stop.

    Raises:
      RoundInterrupted: If `should_stop` says so.
      UserError, FailedError: As `admit`.
    """
    while self.starting:
      self.admit(POLL_SECONDS, num_wanted=self._settings.num_workers)
      if should_stop():
        raise RoundInterrupted

  def admit(self, timeout_seconds: float = 0.0, num_wanted: int = 1) -> None:
    """Takes up a worker that has answered; waits for one until the timeout.

    After a minute a line says what workers wait for.

    Raises:
      UserError: If a host differs from this one.
      FailedError: If workers cannot be set up, die again and again while they
        start, or are fewer than wanted after ten minutes.
    """
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
    left = f'Its clients run again; {self._count()} are left.'
    for other in idle:
      del self.up[other]
      self._ask(other)
    return f'a worker on host {host} died. {left}'

  def replace(self, worker: Any) -> None:
    """Ends a worker that was up, if it lives, and asks for another."""
    self.up.pop(worker, None)
    ray.kill(worker)
    self._ask()

  def is_connected(self) -> bool:
    """Whether this process is still connected to the Ray of the workers."""
    return (
      ray.is_initialized()
      and ray.get_runtime_context().gcs_address == self._head
    )

  def head_answers(self) -> bool:
    """Whether something listens at the head; Ray would wait for a minute."""
    return error_at(self._head) is None

  def close(self) -> None:
    """Ends all workers, and Ray if it was started for them."""
    try:
      # The program may have shut Ray down, and the workers with it.
      is_connected = self.is_connected()
      if is_connected and self.head_answers():
        starting = [worker for worker, *_ in self.starting.values()]
        for worker in [*self.up, *starting]:
          ray.kill(worker)
      if self._has_started_ray:
        # Its silence is no news.
        self._is_closed.set()
      if self._has_own_ray and is_connected:
        ray.shutdown()
    finally:
      # Last, so that the watch still speaks while we wait for a dead head.
      self._is_closed.set()

  def _ask(self, worker=None, num_died=0):
    """Asks a worker, or a new one, whether it is up."""
    worker = worker or self._make_worker()
    self.starting[worker.place.remote()] = worker, time.monotonic(), num_died

  def _receive(self, answer):
    """Takes up the worker that answered, or replaces one that died."""
    worker, _, num_died = self.starting.pop(answer)
    try:
      self.up[worker] = ray.get(answer)
    except ray.exceptions.RayError as error:
      ray.kill(worker)
      self._ask(num_died=num_died + 1)
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
      f'{len(self.up)} of {self._settings.num_workers} workers '
      '(`--config.engine.num_workers`)'
    )

  def _describe_room(self):
    free = ray.available_resources()
    cpus, gpus = self._share
    return (
      f'Each takes {cpus:g} CPU and {gpus:g} GPU; {free.get("CPU", 0):g} CPU '
      f'and {free.get("GPU", 0):g} GPU are free.'
    )


def require_ray(address: str) -> None:
  """Raises UserError unless Ray is installed and answers at an address.

  Ray itself would try for minutes.
  """
  if importlib.util.find_spec('ray') is None:
    raise UserError(
      "`--config.engine.kind='ray'` needs the package ray, which is not "
      "installed here. Install it, or use 'in_process'."
    )
  # Workers use the Ray that a program is connected to, wherever it is.
  if 'ray' in sys.modules and sys.modules['ray'].is_initialized():
    return
  if address in ('local', 'auto'):
    return
  if error := error_at(address, _CONNECT_SECONDS):
    raise _wrong_address(address, error) from error


def _set_up_error(error):
  """Returns the exception to raise for a worker whose `__init__` raised."""
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


def _require_room(settings, cpus):
  """Returns the GPUs to reserve for each worker, or raises UserError."""
  total, num_workers = ray.cluster_resources(), settings.num_workers
  gpus = settings.gpus_per_worker
  if gpus is None:
    num_gpus = total.get('GPU', 0)
    gpus = 1.0 if num_gpus >= num_workers else 0.0
    if num_gpus and not gpus:
      print(
        f'fedfish: note: no worker uses a GPU: there are {num_gpus:g} for '
        f'{num_workers} workers. Lower `--config.engine.num_workers`, or share '
        'them, such as by `--config.engine.gpus_per_worker=0.5`.',
        file=sys.stderr,
      )
  for kind, option, wanted in (
    ('CPU', 'num_workers', cpus),
    ('GPU', 'gpus_per_worker', gpus),
  ):
    if total.get(kind, 0) < num_workers * wanted:
      raise UserError(
        f'{num_workers} workers (`--config.engine.num_workers`) need '
        f'{num_workers * wanted:g} {kind}, but Ray at {settings.address!r} has '
        f'{total.get(kind, 0):g}. Lower `--config.engine.{option}`, or add '
        'machines.'
      )
  return gpus


def _connect(address, num_workers):
  """Starts Ray or joins it, without its own words and signal handler."""
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
    raise FailedError(
      f'Ray cannot start on this machine: {describe_error(error)}. Look for '
      'room in /tmp and memory, set TMPDIR to a shorter path, or use '
      "`--config.engine.kind='in_process'`."
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
  """Hides a line of Ray's library on its log level."""
  sys.stderr.flush()
  kept = os.dup(2)
  try:
    with open(os.devnull, 'wb') as nowhere:
      os.dup2(nowhere.fileno(), 2)
      yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
