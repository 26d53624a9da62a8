"""The in-process context gives what TFF's own context gives."""

import collections
import os
import signal
import threading
import time

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import worker_processes

from tff_fedfish.algorithms.fed_fish import build_fed_fish
from tff_fedfish.runtime import in_process_context


@pytest.fixture(autouse=True)
def _in_process():
  in_process_context.set_in_process_context()


def _datasets():
  random = np.random.RandomState(1)
  return [
    linear_models.batches(
      random.normal(size=(n, 3)).astype(np.float32),
      random.normal(size=n),
      2,
    )
    for n in (3, 4)
  ]


@pytest.mark.parametrize('hangs', [False, True])
def test_computation_without_a_form_falls_back_with_one_warning(
  monkeypatch, hangs
):
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  before = set(worker_processes.below(os.getpid()))
  context = in_process_context.InProcessContext()
  with (
    tff.framework.get_context_stack().install(context),
    pytest.warns(UserWarning, match='cannot run in process') as warned,
  ):
    assert total([1, 2, 3]) == 6
    assert total([4, 5]) == 9
  mine = [w for w in warned if 'cannot run in process' in str(w.message)]
  assert len(mine) == 1
  assert 'int32' in str(mine[0].message)
  # TFF's worker process runs until the context is closed.
  (worker,) = set(worker_processes.below(os.getpid())) - before
  if hangs:
    # Stopped, it does not answer the interrupt that TFF sends it.
    os.kill(worker, signal.SIGSTOP)
    monkeypatch.setattr(in_process_context, '_CLOSING_SECONDS', 0.5)
  context.close()
  deadline = time.monotonic() + 5
  while set(worker_processes.below(os.getpid())) - before:
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_dataset_of_another_type_is_refused():
  process = build_fed_fish(
    linear_models.linear_model(3),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
  )
  wrong = linear_models.batches(np.zeros([2, 4], np.float32), [0, 0], 2)
  with pytest.raises(TypeError, match='float32'):
    process.next(process.initialize(), [wrong])


def test_restored_numpy_state_continues_bitwise():
  process = build_fed_fish(
    linear_models.linear_model(3),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.adam(0.1),
  )
  state = process.next(process.initialize(), _datasets()).state
  as_numpy = tf.nest.map_structure(np.asarray, state)
  for one, other in zip(
    tf.nest.flatten(process.next(as_numpy, _datasets()).state),
    tf.nest.flatten(process.next(state, _datasets()).state),
    strict=True,
  ):
    np.testing.assert_array_equal(one, other)


def test_threads_install_the_context():
  context = in_process_context.set_in_process_context()
  results = []

  @tff.tensorflow.computation(np.float32)
  def double(x):
    return 2 * x

  def run():
    with tff.framework.get_context_stack().install(context):
      results.append(double(21.0))

  threads = [threading.Thread(target=run) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert [float(r) for r in results] == [42.0] * 4


def test_same_function_names_in_two_computations_do_not_collide():
  def build(factor):
    @tf.function
    def body(x):
      return x * factor

    return tff.tensorflow.computation(lambda x: body(x), np.float32)

  double, triple = build(2.0), build(3.0)
  assert [float(double(1.0)), float(triple(1.0)), float(double(1.0))] == [
    2,
    3,
    2,
  ]


def test_results_come_in_the_containers_of_the_type():
  @tff.tensorflow.computation
  def make():
    # TFF keeps this order; sorting by key would swap the two.
    return collections.OrderedDict(b=tf.constant(1), a=tf.constant(2.0))

  result = make()
  assert list(result) == ['b', 'a']
  assert (int(result['b']), float(result['a'])) == (1, 2.0)
