"""Tells of clients that hang and of a Ray that is gone, which Ray does not."""

import contextlib
import math
import socket
import statistics
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from tff_fedfish.late import module

ray = module('ray')

# Between two questions whether Ray still runs, until one is given up, and until
# a line says so: it is refused, or not answered. Unit: seconds.
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


def late_seconds(
  num_clients: int, seconds_per_client: Sequence[float], told: float
) -> float:
  """Returns the seconds of a part of a cohort after which a line says so.

  A stuck disk raises nothing: its round would hang in silence. Ten times the
  median of the parts that ended, per client, but at least a minute; ten minutes
  while none has ended; twice the seconds that the last line has `told`.
  """
  if told:
    return 2 * told
  if not seconds_per_client:
    return _LATE_SECONDS_OF_FIRST
  median = statistics.median(seconds_per_client) * num_clients
  return max(_LATE_FACTOR * median, _MIN_LATE_SECONDS)


def describe_error(error: BaseException) -> str:
  """Returns type and text in one line; start and end of a long text."""
  text = ' '.join(str(error).split()).rstrip('.')
  if len(text) > _MAX_ERROR_CHARS:
    # Ray puts the traceback of a worker last, and its exception at the end.
    half = _MAX_ERROR_CHARS // 2
    text = f'{text[:half]} ... {text[-half:]}'
  return f'{type(error).__name__}: {text}' if text else type(error).__name__


def error_at(
  address: str, timeout_seconds: float = _ANSWER_SECONDS
) -> Exception | None:
  """Returns why nothing answers at HOST:PORT; None: something does."""
  host, _, port = address.rpartition(':')
  try:
    if not host or not port.isdecimal() or int(port) >= 2**16:
      raise ValueError('not HOST:PORT')
    address = host.strip('[]'), int(port)
    socket.create_connection(address, timeout_seconds).close()
  except (OSError, ValueError) as error:
    return error
  return None


def raylet_address() -> str:
  """Returns HOST:PORT of the raylet that this process is connected to."""
  own = ray.get_runtime_context().get_node_id()
  (node,) = [node for node in ray.nodes() if node['NodeID'] == own]
  return f'{node["NodeManagerAddress"]}:{node["NodeManagerPort"]}'


def tell_of_silence(
  watched: Mapping[str, str], is_closed: threading.Event
) -> None:
  """Says how to go on once Ray has ended this process, which it does in C++.

  A driver without its raylet has some five seconds, one without the head a
  minute, in which it may stand in a call: this runs in a thread.

  Args:
    watched: HOST:PORT by the name that a line gives it.
    is_closed: Ends the watch.
  """
  silent_since = {}
  while not is_closed.wait(_QUESTION_SECONDS):
    for name, address in watched.items():
      asked, error = time.monotonic(), error_at(address)
      if error is None:
        silent_since.pop(name, None)
        continue
      seconds = time.monotonic() - silent_since.setdefault(name, asked)
      is_refused = isinstance(error, ConnectionRefusedError)
      limit = _REFUSED_SECONDS if is_refused else _SILENT_SECONDS
      if seconds < limit or is_closed.is_set():
        continue
      # Until it answers again.
      silent_since[name] = math.inf
      with contextlib.suppress(OSError):
        print(
          f'fedfish: {name} at {address} does not answer '
          f'({describe_error(error)}). Unless it comes back, Ray ends this '
          'process within about a minute. Start Ray again on all machines; the '
          'same command then continues from the last checkpoint.',
          file=sys.stderr,
          flush=True,
        )
