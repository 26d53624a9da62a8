"""Limit on the time that a client takes, from its first batch on.

The clock is looked at whenever the client asks for data, and once more when it
is done: a graph that runs cannot be ended from outside.
"""

import time
from typing import Any

import tensorflow as tf

from tff_fedfish.runtime import placement
from tff_fedfish.runtime.client_data import DroppedClientError


class ClientTimeoutError(DroppedClientError):
  """A client has taken longer than it may."""


class Deadline:
  """The clock of one client.

  Attributes:
    is_over: Whether the client was told that its time is over.
  """

  def __init__(self, limit_seconds: float):
    """Starts no clock yet.

    Args:
      limit_seconds: Time from the first batch on, > 0.
    """
    self._limit_seconds = limit_seconds
    self._start: float | None = None
    self.is_over = False

  def watch(self, data: Any) -> Any:
    """Returns a client's data, whose datasets raise when the time is over."""
    return tf.nest.map_structure(
      lambda value: (
        self._watch(value) if isinstance(value, tf.data.Dataset) else value
      ),
      data,
    )

  def require(self) -> None:
    """Starts the clock, or raises ClientTimeoutError if the time is over."""
    now = time.monotonic()
    if self._start is None:
      self._start = now
    elif now - self._start > self._limit_seconds:
      self.is_over = True
      raise self.error()

  def error(self) -> ClientTimeoutError:
    """Returns the error of a client whose time is over."""
    return ClientTimeoutError(
      f'it took longer than {self._limit_seconds:g} s '
      '(`--config.engine.client_timeout_seconds`)'
    )

  def _watch(self, dataset):
    def require():
      self.require()
      return True

    def check(*element):
      looked = tf.numpy_function(require, [], tf.bool)
      with tf.control_dependencies([looked]):
        passed_on = tf.nest.map_structure(
          tf.identity, element, expand_composites=True
        )
      return passed_on if len(passed_on) > 1 else passed_on[0]

    options = tf.data.Options()
    # Reads ahead of the client.
    options.experimental_optimization.inject_prefetch = False
    with placement.on_cpu():
      return dataset.map(check).with_options(options)
