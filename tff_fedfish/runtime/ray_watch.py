"""Tells of clients that hang and of a Ray that is gone, which Ray does not."""

import contextlib
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping

# Between two questions whether Ray still runs, until one is given up, and until
# a line says so: nothing listens there, or nothing answers. Unit: seconds.
_QUESTION_SECONDS = 1.0
_ANSWER_SECONDS = 5.0
_REFUSED_SECONDS = 2.0
_SILENT_SECONDS = 10.0
# Until a part of a cohort is late: as a multiple of the median of others, at
# least, and while none has ended. Unit of the last two: seconds.
_LATE_FACTOR = 10
_MIN_LATE_SECONDS = 60.0
_LATE_SECONDS_OF_FIRST = 600.0
# Length of Ray's part of an error. Unit: characters.
_MAX_ERROR_CHARS = 500


class LateParts:
  """Finds parts of a cohort that take far longer per client than the others.

  A stuck disk raises nothing: without a line its round would hang in silence.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Has no part yet; the clock counts seconds."""
    self._clock = clock
    # Clients, time of the start, and seconds at the last line, by part.
    self._running: dict[Hashable, tuple[int, float, float]] = {}
    self._seconds_per_client: list[float] = []

  def begin(self, part: Hashable, num_clients: int) -> None:
    """Notes that a part with so many clients starts."""
    self._running[part] = num_clients, self._clock(), 0.0

  def end(self, part: Hashable) -> None:
    """Notes that a part ended."""
    num_clients, start, _ = self._running.pop(part)
    self._seconds_per_client.append((self._clock() - start) / num_clients)

  def due(self) -> Iterator[tuple[Hashable, float]]:
    """Yields (part, its seconds) where a line is due: once late, then doubled.

    A part is late after ten times the median of the clients of parts that
    ended, but not before a minute; while none has, after ten minutes.
    """
    for part, (num_clients, start, told) in self._running.items():
      limit = 2 * told or _LATE_SECONDS_OF_FIRST
      if not told and self._seconds_per_client:
        median = statistics.median(self._seconds_per_client) * num_clients
        limit = max(_LATE_FACTOR * median, _MIN_LATE_SECONDS)
      seconds = self._clock() - start
      if seconds >= limit:
        self._running[part] = num_clients, start, seconds
        yield part, seconds


def describe_error(error: BaseException) -> str:
  """Returns type and text in one line; start and end of a long text."""
  text = ' '.join(str(error).split()).rstrip('.')
  if len(text) > _MAX_ERROR_CHARS:
    # Ray puts the traceback of a worker last, and its exception at the end.
    half = _MAX_ERROR_CHARS // 2
    text = f'{text[:half]} ... {text[-half:]}'
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


def _parse(address):
  """Returns host and port; raises ValueError."""
  host, _, port = address.rpartition(':')
  if not host or not port.isdecimal() or int(port) >= 2**16:
    raise ValueError('not HOST:PORT')
  return host.strip('[]'), int(port)


def error_at(
  address: str, timeout_seconds: float = _ANSWER_SECONDS
) -> Exception | None:
  """Returns why nothing answers at HOST:PORT; None: something does."""
  try:
    socket.create_connection(_parse(address), timeout_seconds).close()
  except (OSError, ValueError) as error:
    return error
  return None


def raylet_address() -> str:
  """Returns HOST:PORT of the raylet that this process is connected to."""
  import ray

  own = ray.get_runtime_context().get_node_id()
  (node,) = [node for node in ray.nodes() if node['NodeID'] == own]
  return f'{node["NodeManagerAddress"]}:{node["NodeManagerPort"]}'


def tell_of_silence(
  watched: Mapping[str, str], is_closed: threading.Event
) -> None:
  """Says how to go on once Ray has ended this process, which it does in C++.

  A driver without its raylet has some five seconds, one without the head a
  minute. Says so once for each silence, in a thread: the driver may stand in a
  call that waits for the head.

  Args:
    watched: HOST:PORT by the name that a line gives it.
    is_closed: Ends the watch.
  """
  silent_since, said = {}, set()
  while not is_closed.wait(_QUESTION_SECONDS):
    for name, address in watched.items():
      asked = time.monotonic()
      error = error_at(address)
      if error is None:
        silent_since.pop(name, None)
        said.discard(name)
        continue
      seconds = time.monotonic() - silent_since.setdefault(name, asked)
      is_refused = isinstance(error, ConnectionRefusedError)
      limit = _REFUSED_SECONDS if is_refused else _SILENT_SECONDS
      if seconds < limit or name in said or is_closed.is_set():
        continue
      said.add(name)
      with contextlib.suppress(OSError):
        print(
          f'fedfish: {name} at {address} does not answer '
          f'({describe_error(error)}). Unless it comes back, Ray ends this '
          'process within about a minute. Start Ray again on all machines; the '
          'same command then continues from the last checkpoint.',
          file=sys.stderr,
          flush=True,
        )
