"""The in-process context compiles, keeps, drops, and serves threads."""

import concurrent.futures
import contextlib
import gc
import threading
import weakref

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context as eager_context
from waiting import LIMIT_SECONDS

import tff_fedfish
from tff_fedfish.runtime import execution, in_process_context, round_options
from tff_fedfish.runtime.client_data import ClientLoader, LoadedClient

pytestmark = pytest.mark.usefixtures('small_heap')

_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@pytest.fixture(autouse=True)
def _in_process():
  in_process_context.set_in_process_context()


@pytest.fixture(scope='module')
def process():
  return tff_fedfish.build_fed_fish(
    linear_models.linear_model(3),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.adam(0.1),
  )


def _datasets():
  random = np.random.RandomState(1)
  rows = [(random.normal(size=(n, 3)), random.normal(size=n)) for n in (3, 4)]
  return [linear_models.batches(x.astype(np.float32), y, 2) for x, y in rows]


@tf.function
def _multiply(x, y):
  return x * y


def test_products_are_float32():
  switch = tf.config.experimental.enable_tensor_float_32_execution
  switch(True)
  in_process_context.set_in_process_context()
  assert not tf.config.experimental.tensor_float_32_execution_enabled()


def _double():
  return tff.tensorflow.computation(lambda x: _multiply(x, 2.0), np.float32)


def _round():
  @tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
  def mean(state, numbers):
    return state, tff.federated_mean(tff.federated_map(_double(), numbers))

  return mean


def _broadcast():
  multiply = tff.tensorflow.computation(
    lambda x, y: _multiply(x, y), (np.float32, np.float32)
  )

  @tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
  def products(factor, numbers):
    pairs = (tff.federated_broadcast(factor), numbers)
    return tff.federated_map(multiply, pairs)

  return products


def _imported_functions():
  names = eager_context.context().list_function_names()
  return {name for name in names if 'fedfish' in name}


@pytest.mark.parametrize(
  'build, arguments, expected',
  [
    (_double, (21.0,), 42),
    # (2 * 1 + 2 * 2 + 2 * 6) / 3.
    (_round, (5.0, [1.0, 2.0, 6.0]), (5, 6)),
    (_broadcast, (5.0, [1.0, 2.0]), [5, 10]),
  ],
)
def test_what_was_compiled_goes_with_its_computation_and_by_closing(
  monkeypatch, build, arguments, expected
):
  compiled = []

  def build_execution(computation):
    result = execution.build_execution(computation)
    compiled.append(weakref.ref(result))
    return result

  monkeypatch.setattr(in_process_context, 'build_execution', build_execution)
  gc.collect()
  before = _imported_functions()
  context = in_process_context.InProcessContext()
  computation = build()
  with tff.framework.get_context_stack().install(context):
    assert computation(*arguments) == expected
    assert computation(*arguments) == expected
    assert len(compiled) == 1
    context.close()
    gc.collect()
    assert compiled[0]() is None
    assert computation(*arguments) == expected
    assert len(compiled) == 2
    assert compiled[1]() is not None
    # `_multiply`, which TensorFlow holds apart from what calls it.
    assert _imported_functions() > before
    del computation
    gc.collect()
    assert compiled[1]() is None
  assert _imported_functions() <= before


def test_want_of_memory_is_no_lack_of_a_form(monkeypatch):
  errors = [tf.errors.ResourceExhaustedError(None, None, 'OOM'), MemoryError()]

  def build_execution(computation):
    if errors:
      raise errors.pop()
    return execution.build_execution(computation)

  monkeypatch.setattr(in_process_context, 'build_execution', build_execution)
  context = in_process_context.InProcessContext()
  double = _double()
  with tff.framework.get_context_stack().install(context):
    for error in (MemoryError, tf.errors.ResourceExhaustedError):
      with pytest.raises(error):
        double(21.0)
    assert double(21.0) == 42
  assert context._stock_context is None


class _MeetingLoader(ClientLoader):
  """Loads a client when every thread of the barrier wants one."""

  def __init__(self, barrier, dataset):
    self._barrier, self._dataset = barrier, dataset

  def load(self):
    self._barrier.wait(timeout=LIMIT_SECONDS)
    return LoadedClient(self._dataset, {'num_parties': self._barrier.parties})


def test_threads_run_rounds_of_one_process_at_the_same_time(process):
  context = in_process_context.set_in_process_context()
  start = process.initialize()

  def run(num_partial_sums, barrier):
    """Two rounds; returns the state, the outcome and who asked to stop."""
    asked = []
    with contextlib.ExitStack() as stack:
      stack.enter_context(tff.framework.get_context_stack().install(context))
      outcome = None
      if num_partial_sums is not None:
        options = round_options.RoundOptions(
          num_partial_sums=num_partial_sums,
          should_stop=lambda: asked.append(threading.get_ident()),
        )
        outcome = stack.enter_context(round_options.use_round_options(options))
      state = start
      for _ in range(2):
        clients = [_MeetingLoader(barrier, data) for data in _datasets() * 2]
        state = process.next(state, clients).state
    return state, outcome, asked

  # None: without any options, those of the other thread must not be seen.
  choices = (3, None)
  alone = [run(choice, threading.Barrier(1)) for choice in choices]
  barrier = threading.Barrier(2)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    together = list(pool.map(lambda choice: run(choice, barrier), choices))
  for (expected, _, _), (found, _, _) in zip(alone, together, strict=True):
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
  (_, outcome, asked), (_, no_outcome, not_asked) = together
  # Two rounds of four clients, in one thread.
  assert len(asked) == 8
  assert len(set(asked)) == 1
  assert outcome.counts == {client: {'num_parties': 2} for client in range(4)}
  assert (no_outcome, not_asked) == (None, [])


def test_restored_numpy_state_continues_bitwise(process):
  state = process.next(process.initialize(), _datasets()).state
  as_numpy = tf.nest.map_structure(np.asarray, state)
  tf.nest.map_structure(
    np.testing.assert_array_equal,
    process.next(as_numpy, _datasets()).state,
    process.next(state, _datasets()).state,
  )


def test_same_function_names_in_two_computations_do_not_collide():
  def build(factor):
    @tf.function
    def body(x):
      return x * factor

    return tff.tensorflow.computation(lambda x: body(x), np.float32)

  double, triple = build(2.0), build(3.0)
  assert (double(1.0), triple(1.0), double(1.0)) == (2, 3, 2)
