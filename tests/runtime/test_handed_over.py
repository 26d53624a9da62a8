"""Computations in TFF's own context: secure sums, a number of clients."""

import os

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import worker_processes
from tensorflow_federated.python.core.backends.mapreduce import intrinsics
from waiting import wait_until

from tff_fedfish.runtime import in_process_context

_AT_CLIENTS = tff.FederatedType(np.int32, tff.CLIENTS)


@tff.federated_computation(_AT_CLIENTS)
def _secure(numbers):
  return (
    tff.federated_secure_sum_bitwidth(numbers, 8),
    intrinsics.federated_secure_modular_sum(numbers, 7),
    tff.federated_secure_sum(numbers, 100),
    tff.federated_sum(numbers),
  )


def test_secure_sums_are_handed_over(stock_context):
  calls = [[5, 6, 7], [5]]
  with tff.framework.get_context_stack().install(stock_context):
    expected = [_secure(call) for call in calls]
  before = set(worker_processes.below(os.getpid()))
  context = in_process_context.InProcessContext()
  with (
    tff.framework.get_context_stack().install(context),
    pytest.warns(UserWarning, match='cannot run in process') as warned,
  ):
    found = [_secure(call) for call in calls]
  # 5 + 6 + 7 = 18 = 2 * 7 + 4.
  assert found == [(18, 4, 18, 18), (5, 5, 5, 5)]
  assert found == expected
  for one, other in zip(sum(found, ()), sum(expected, ()), strict=True):
    assert type(one) is type(other)
  assert len([w for w in warned if 'in process' in str(w.message)]) == 1
  context.close()
  wait_until(lambda: not set(worker_processes.below(os.getpid())) - before)


def test_bounds_of_secure_sums_are_not_checked(stock_context):
  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER), _AT_CLIENTS
  )
  def total(state, numbers):
    return state, tff.federated_secure_sum(numbers, 5)

  # A difference: what is above the bound would not come through a protocol.
  with (
    tff.framework.get_context_stack().install(stock_context),
    pytest.raises(grpc.RpcError, match='larger than maximum'),
  ):
    total(0, [7, 2])
  with tff.framework.get_context_stack().install(
    in_process_context.InProcessContext()
  ):
    assert total(0, [7, 2]) == (0, 9)


@tff.tensorflow.computation(np.int32)
def _queued(number):
  queue = tf.queue.FIFOQueue(9, [tf.int32], shapes=[[]])
  with tf.control_dependencies([queue.enqueue(number)]):
    return queue.size()


@tff.tensorflow.computation(np.int32)
def _dense_in_function(number):
  @tf.function
  def size(number):
    table = tf.lookup.experimental.DenseHashTable(
      tf.int32, tf.int32, -1, -2, -3
    )
    table.insert(number, number)
    return table.size()

  return tf.cast(size(number), tf.int32)


@pytest.mark.parametrize('work', [_queued, _dense_in_function])
@pytest.mark.parametrize('is_round', [False, True])
def test_graphs_that_cannot_start_again(work, is_round):
  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER), _AT_CLIENTS
  )
  def total(state, numbers):
    return state, tff.federated_sum(tff.federated_map(work, numbers))

  context = in_process_context.InProcessContext()
  with (
    tff.framework.get_context_stack().install(context),
    pytest.warns(UserWarning, match='cannot run in process.*can start again'),
  ):
    # One entry for each client of each call, whatever was there before.
    if is_round:
      assert [total(0, [7, 8]) for _ in range(2)] == [(0, 2), (0, 2)]
    else:
      assert [work(number) for number in (7, 8)] == [1, 1]
  context.close()


@tff.federated_computation
def _num_clients():
  return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))


class TestDefaultNumClients:
  """The number of clients where no argument tells it."""

  @pytest.fixture(autouse=True)
  def _restored(self):
    yield
    in_process_context.set_in_process_context()

  @pytest.mark.parametrize('num_clients', [0, 3])
  def test_in_what_is_handed_over(self, num_clients):
    context = in_process_context.set_in_process_context(
      default_num_clients=num_clients
    )
    with pytest.warns(UserWarning, match='cannot run in process'):
      assert _num_clients() == num_clients
    context.close()

  def test_another_number_is_another_context(self):
    context = in_process_context.set_in_process_context(default_num_clients=2)
    assert tff.framework.get_context_stack().current is context
    assert in_process_context.set_in_process_context(2) is context
    assert in_process_context.set_in_process_context() is not context

  def test_negative_number(self):
    before = in_process_context.set_in_process_context()
    with pytest.raises(ValueError) as raised:
      in_process_context.set_in_process_context(default_num_clients=-1)
    assert str(raised.value) == (
      'default_num_clients must be at least 0, found -1.'
    )
    assert in_process_context.set_in_process_context() is before
