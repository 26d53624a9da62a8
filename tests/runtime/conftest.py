"""TFF's own context, to compare with; a heap that is collected quickly."""

import gc
import os
import signal

import pytest
import worker_processes


@pytest.fixture(scope='module')
def small_heap():
  """Leaves what earlier tests keep out of `gc.collect`, a second each time."""
  gc.collect()
  gc.freeze()


@pytest.fixture(scope='module')
def stock_context():
  """A context of TFF's own, in its second process."""
  import tensorflow_federated as tff

  before = set(worker_processes.below(os.getpid()))
  # The default context of TFF cannot run secure sums; this one can.
  context = tff.backends.test.create_sync_test_cpp_execution_context()
  yield context
  # TFF would interrupt its worker and wait for it: for ever, if these tests
  # were started in the background of a script.
  for worker in set(worker_processes.below(os.getpid())) - before:
    os.kill(worker, signal.SIGKILL)
  context._executor_factory = None
