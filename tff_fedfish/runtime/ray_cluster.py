"""Starts Ray or joins a cluster, quietly; what there is for the workers.

A process has one connection to Ray. One that was made here is shared by all who
`join`, and ends with the last of them; one that the program made with
`ray.init` is used as it is, and never ended.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tff_fedfish.errors import FailedError, UserError
from tff_fedfish.runtime import ray_internals, ray_watch

# Nothing is sent to anyone, and what Ray says of itself is not the user's.
_ENVIRONMENT = {
  'RAY_USAGE_STATS_ENABLED': '0',
  'RAY_BACKEND_LOG_LEVEL': 'fatal',
  'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '0',
}
# Until the head of a cluster answers. Unit: seconds.
_CONNECT_SECONDS = 10.0
# Of what Ray says in an error. Unit: characters.
_MAX_ERROR_CHARS = 500

_lock = threading.Lock()
_num_users = 0
# Of the connection that was made here, None without one.
_address: str | None = None
# Gives Ray its voice back when it ends.
_unmute: Callable[[], None]
# Of the connection in use, whoever made it.
_watch: ray_watch.HeadWatch | None = None


def join(address: str, num_workers: int) -> None:
  """Connects this process to Ray, unless it is; `leave` is to follow.

  Args:
    address: 'local' starts Ray here; 'auto' or HOST:PORT joins a cluster. Not
      looked at where the program has called `ray.init` itself.
    num_workers: Processes that a Ray started here is to have ready.

  Raises:
    UserError: If there is no cluster at `address`, or this process has joined
      another one.
    FailedError: If Ray cannot start here.
  """
  global _num_users, _address, _unmute, _watch
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  import ray

  with _lock:
    if not ray.is_initialized():
      with _without_native_stderr():
        _connect(ray, address, num_workers)
      if _address is None:
        _unmute = ray_internals.mute(ray)
      _address = address
    elif _address not in (None, address):
      raise UserError(
        f'`--config.engine.ray_address` must be {_address!r}, to which this '
        f'process is connected, found {address!r}. Close the workers there '
        'first.'
      )
    if _watch is None:
      _watch = _watch_head(ray)
    _num_users += 1


def leave() -> None:
  """Ends what `join` began, if nobody else here uses it."""
  global _num_users, _address, _watch
  import ray

  with _lock:
    _num_users -= 1
    if not _num_users and _watch is not None:
      _watch.close()
      _watch = None
    if not _num_users and _address is not None:
      _address = None
      ray.shutdown()
      _unmute()


def require_alive() -> None:
  """Raises FailedError where the head is gone, or Ray on this machine."""
  if _watch is not None:
    _watch.require()


def head_answers() -> bool:
  """Returns whether the head can be asked; Ray would wait for it, a minute."""
  return _watch is None or ray_watch.answers(_watch.address)


def wait_for_head() -> None:
  """Returns when the head can be asked.

  Raises:
    FailedError: As `require_alive`.
  """
  if _watch is not None:
    _watch.wait()


class Share(NamedTuple):
  """Resources that Ray reserves for a worker."""

  cpus: float
  """Share of Ray's CPUs, which are a count; no core is pinned."""
  gpus: float
  """GPUs, or a part of one."""

  def describe(self) -> str:
    """Returns a sentence on what is reserved and what is free."""
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    parts = [
      f'{wanted:g} {kind} ({free.get(kind, 0):g} of {total.get(kind, 0):g} '
      'free)'
      for kind, wanted in (('CPU', self.cpus), ('GPU', self.gpus))
      if wanted
    ]
    if not parts:
      # No want of room, then.
      return (
        'They may need more time to import TensorFlow, or more memory than '
        'there is.'
      )
    return f'Each takes {" and ".join(parts)}.'


def share_of_worker(
  num_workers: int, gpus_per_worker: float | None, address: str
) -> Share:
  """Returns what to reserve for each worker.

  Args:
    num_workers: Workers, >= 1.
    gpus_per_worker: GPUs for each; None: 1 where Ray has one for every worker,
      else 0.
    address: As the user named Ray.

  Raises:
    UserError: If Ray has less than all workers need, whoever uses it now.
  """
  import ray

  found = ray.cluster_resources()
  if gpus_per_worker is None:
    gpus_per_worker = 1.0 if found.get('GPU', 0) >= num_workers else 0.0
  # A Ray of our own has nobody to share CPUs with but workers of this process,
  # which would wait for one another.
  share = Share(0.0 if _address == 'local' else 1.0, gpus_per_worker)
  for kind, option, wanted in (
    ('CPU', 'num_workers', share.cpus),
    ('GPU', 'gpus_per_worker', share.gpus),
  ):
    if found.get(kind, 0) < num_workers * wanted:
      raise UserError(
        f'{num_workers} workers (`--config.engine.num_workers`) need '
        f'{num_workers * wanted:g} {kind}, but Ray at {address!r} has '
        f'{found.get(kind, 0):g}. Lower `--config.engine.{option}`, or add '
        'machines.'
      )
  return share


def require_listener(address: str) -> None:
  """Raises UserError where nothing answers; Ray itself tries for minutes.

  See `join` for the address. 'local' and 'auto' name nothing that could answer.
  """
  if address in ('local', 'auto'):
    return
  host, _, port = address.rpartition(':')
  try:
    if not host or not port.isdecimal() or int(port) >= 2**16:
      raise ValueError('not HOST:PORT')
    where = (host.strip('[]'), int(port))
    socket.create_connection(where, _CONNECT_SECONDS).close()
  except (OSError, ValueError) as error:
    raise _wrong_address(address, error) from error


def describe_error(error: BaseException) -> str:
  """Returns type and text in one line; of a long text, start and end."""
  text = ' '.join(str(error).split()).rstrip('.')
  if len(text) > _MAX_ERROR_CHARS:
    # Ray puts the traceback of a worker last, and what was raised at its end.
    half = _MAX_ERROR_CHARS // 2
    text = f'{text[:half]} ... {text[-half:]}'
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


def _connect(ray, address, num_workers):
  options = dict(logging_level=logging.CRITICAL, log_to_driver=False)
  if address == 'local':
    options |= dict(num_cpus=num_workers, include_dashboard=False)
  require_listener(address)
  handler = signal.getsignal(signal.SIGTERM)
  try:
    ray.init(address=address, **options)
  # Of any type: some of what Ray raises is a plain Exception.
  except Exception as error:
    # Parts of it may run.
    ray.shutdown()
    if address != 'local':
      raise _wrong_address(address, error) from error
    raise FailedError(
      f'Ray cannot start on this machine: {describe_error(error)}. Look for '
      "room in /tmp and memory, or use `--config.engine.kind='in_process'`."
    ) from error
  finally:
    # Ray replaces our handler when it starts in the main thread.
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and handler is not None:
      signal.signal(signal.SIGTERM, handler)


def _watch_head(ray):
  context = ray.get_runtime_context()
  host, _, port = context.gcs_address.rpartition(':')
  (own,) = [n for n in ray.nodes() if n['NodeID'] == context.get_node_id()]
  return ray_watch.HeadWatch(
    (host.strip('[]'), int(port)),
    (own['NodeManagerAddress'], own['NodeManagerPort']),
  )


def _wrong_address(address, error):
  return UserError(
    '`--config.engine.ray_address` must be local, auto or the HOST:PORT of a '
    f'running Ray cluster, found {address!r} ({describe_error(error)}). Start '
    "one with `ray start --head`, or use 'local'."
  )


@contextlib.contextmanager
def _without_native_stderr() -> Iterator[None]:
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
