"""Corrections of Beam's own runner, of the version that the lock file names."""

import functools
import threading

from apache_beam.runners.portability.fn_api_runner import execution


@functools.cache
def lock_buffers() -> None:
  """Keeps Beam's own runner from losing elements with several workers.

  `get_buffer` looks for a buffer and makes one if there is none, from a thread
  for each worker. Where two threads looked before either had made one, the
  elements in one of the two buffers were lost.
  """
  lock = threading.Lock()
  get_buffer = execution.BundleContextManager.get_buffer

  @functools.wraps(get_buffer)
  def get_buffer_locked(*args, **kwargs):
    with lock:
      return get_buffer(*args, **kwargs)

  execution.BundleContextManager.get_buffer = get_buffer_locked
