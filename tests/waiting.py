"""Waiting for events, for as long as a busy machine may take."""

import time
from collections.abc import Callable

LIMIT_SECONDS = 300
"""Only a test that fails waits as long."""


def wait_until(condition: Callable[[], object]) -> None:
  """Returns as soon as the condition holds; fails after `LIMIT_SECONDS`."""
  deadline = time.monotonic() + LIMIT_SECONDS
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)
