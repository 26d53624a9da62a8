"""A heap that is collected quickly."""

import gc

import pytest


@pytest.fixture(scope='module')
def small_heap():
  """Leaves what earlier tests keep out of `gc.collect`, a second each time."""
  gc.collect()
  gc.freeze()
