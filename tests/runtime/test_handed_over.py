"""Computations that TFF's own context runs: results, warning, no leftovers."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import worker_processes
from waiting import wait_until

from tff_fedfish.runtime import in_process_context
from tff_fedfish.runtime.round_options import RoundOptions, use_round_options

_AT_SERVER = tff.FederatedType(np.int32, tff.SERVER)
_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


@pytest.fixture(scope='module')
def context():
  """A context whose worker process is shared by these tests."""
  context = in_process_context.InProcessContext()
  yield context
  context.close()


def _hand_over(context, computation, calls):
  """Returns the results of calls, of which the first one warns."""
  with (
    tff.framework.get_context_stack().install(context),
    pytest.warns(UserWarning, match='cannot run in process') as warned,
  ):
    results = [computation(*call) for call in calls]
  assert len([w for w in warned if 'in process' in str(w.message)]) == 1
  return results


@tff.federated_computation(_AT_CLIENTS)
def _sums_without_state(numbers):
  return (
    tff.federated_secure_sum_bitwidth(numbers, 8),
    tff.federated_secure_sum(numbers, 100),
    tff.federated_sum(numbers),
  )


@tff.tensorflow.computation(np.int32)
def _variable(x):
  variable = tf.Variable(x)
  with tf.control_dependencies([variable.assign_add(1)]):
    return variable.read_value()


@tff.tensorflow.computation(np.int32)
def _table_in_function(number):
  @tf.function
  def size(number):
    table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, -1)
    table.insert(number, number)
    return table.size()

  return tf.cast(size(number), tf.int32)


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _round_with_variables(state, numbers):
  return state, tff.federated_sum(tff.federated_map(_variable, numbers))


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _report_with_tables(unused_state, numbers):
  return tff.federated_sum(tff.federated_map(_table_in_function, numbers))


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _values_at_clients(unused_state, numbers):
  return tff.federated_map(_variable, numbers)


@pytest.mark.parametrize(
  'computation, calls, expected',
  [
    # 5 + 6 + 7.
    (_sums_without_state, [([5, 6, 7],), ([5],)], [(18,) * 3, (5,) * 3]),
    (_variable, [(2,), (-4,)], [3, -3]),
    # One entry in each call and of each client, whatever was there before.
    (_table_in_function, [(7,), (8,)], [1, 1]),
    # (2 + 1) + (3 + 1).
    (_round_with_variables, [(4, [2, 3])] * 2, [(4, 7)] * 2),
    (_report_with_tables, [(4, [2, 3])] * 2, [2] * 2),
    (_values_at_clients, [(4, [2, 3])], [[3, 4]]),
  ],
)
def test_results_by_hand(context, computation, calls, expected):
  assert _hand_over(context, computation, calls) == expected


@pytest.mark.parametrize('hangs', [False, True])
def test_closing_ends_the_worker(monkeypatch, hangs):
  before = set(worker_processes.below(os.getpid()))
  context = in_process_context.InProcessContext()
  _hand_over(context, _variable, [(1,)])
  (worker,) = set(worker_processes.below(os.getpid())) - before
  if hangs:
    # Stopped, it does not answer the interrupt that TFF sends it.
    os.kill(worker, signal.SIGSTOP)
    monkeypatch.setattr(in_process_context, '_CLOSING_SECONDS', 0.5)
  context.close()
  wait_until(lambda: not set(worker_processes.below(os.getpid())) - before)


@tff.federated_computation
def _num_clients():
  return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))


def test_default_num_clients():
  default = in_process_context.set_in_process_context()
  try:
    context = in_process_context.set_in_process_context(default_num_clients=3)
    assert tff.framework.get_context_stack().current is context
    assert in_process_context.set_in_process_context(3) is context
    assert _hand_over(context, _num_clients, [()]) == [3]
    context.close()
    with pytest.raises(
      ValueError, match='`default_num_clients` must be >= 0, found -1.'
    ):
      in_process_context.set_in_process_context(default_num_clients=-1)
    assert in_process_context.set_in_process_context(3) is context
  finally:
    assert in_process_context.set_in_process_context() is not default


def test_rounds_that_ask_for_what_it_lacks():
  # A context of its own: each warns once of a computation.
  context = in_process_context.InProcessContext()
  with (
    use_round_options(RoundOptions(on_client_output=print)),
    pytest.raises(RuntimeError, match='no workers and no client outputs'),
  ):
    _hand_over(context, _round_with_variables, [(4, [2, 3])])
  context.close()
