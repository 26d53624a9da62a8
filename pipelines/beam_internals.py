"""Corrections of Beam's own runner, of the version that the lock file names."""

import functools
import threading

from apache_beam.runners.portability.fn_api_runner import execution


@functools.cache
def lock_buffers() -> None:
  """Keeps Beam's own runner from losing elements with several workers.

  A thread for each worker looks for the buffer of what it receives, makes one
  if there is none, and adds to it. Where two threads did so at once, the
  elements of one were lost.
  """
  lock = threading.Lock()
  for kind, name in (
    (execution.BundleContextManager, 'get_buffer'),
    (execution.GroupingBuffer, 'append'),
  ):
    setattr(kind, name, _locked(getattr(kind, name), lock))


def _locked(method, lock):
  @functools.wraps(method)
  def locked(*args, **kwargs):
    with lock:
      return method(*args, **kwargs)

  return locked
