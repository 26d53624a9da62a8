"""A user's own computations return what TFF's context returns, in its types."""

import collections
import contextlib
import gc
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import in_process_context

_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_NUMBERS = tff.SequenceType(np.float32)


@contextlib.contextmanager
def _in_process():
  """Runs computations in process; none may be handed to TFF's own context."""
  context = in_process_context.InProcessContext()
  with _installed(context), warnings.catch_warnings():
    warnings.filterwarnings('error', message='.*cannot run in process')
    yield
  context.close()


def _installed(context):
  return tff.framework.get_context_stack().install(context)


def _described(value):
  """Returns a value with the types of all its parts, to be compared."""
  if isinstance(value, tf.data.Dataset):
    rows = list(value.take(9).as_numpy_iterator())
    return tf.data.Dataset, value.element_spec, _described(rows)
  if isinstance(value, dict):
    return type(value), [(key, _described(value[key])) for key in value]
  if isinstance(value, list | tuple):
    return type(value), [_described(element) for element in value]
  if isinstance(value, np.ndarray):
    return np.ndarray, value.dtype, value.shape, value.tolist()
  return type(value), value


@tff.tensorflow.computation(tff.TensorType(np.float32, [3, 1]))
def _rows_gradient(weights):
  # Placed beside the argument, of whose values the gradient needs none.
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(weights, [0, 2, 2]))
  return tf.convert_to_tensor(tape.gradient(loss, weights))


@tff.tensorflow.computation
def _leaves():
  return collections.OrderedDict(
    text='word',
    words=tf.constant([['a'], ['bc']]),
    flag=True,
    half=tf.constant(1.5, tf.bfloat16),
    halves=tf.constant([1.5, -2.0], tf.bfloat16),
    nested=[(1, tf.constant([0.5, -2.0])), tf.zeros([0, 3], tf.int64)],
  )


@tff.federated_computation(_AT_SERVER)
def _at_server(x):
  return x


@tff.tensorflow.computation(_NUMBERS)
def _datasets(numbers):
  return collections.OrderedDict(
    batches=numbers.batch(2),
    # Not in the order of the alphabet.
    named=numbers.map(lambda x: collections.OrderedDict(z=x, a=(2, 3 * x))),
    size=numbers.reduce(0, lambda size, _: size + 1),
  )


@tff.tensorflow.computation
def _endless():
  return tf.data.Dataset.range(3).repeat()


@tff.tensorflow.computation(np.float32, np.float32)
def _step(weight, target):
  # The gradient of (w - t)^2 / 2 is w - t.
  return weight - 0.5 * (weight - target)


@tff.tensorflow.computation(np.float32)
def _single(x):
  return tf.data.Dataset.from_tensors(x)


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _train(weight, targets):
  moved = tff.federated_map(_step, (tff.federated_broadcast(weight), targets))
  return tff.federated_mean(moved), tff.federated_sum(targets)


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _personalize(weight, targets):
  return tff.federated_map(_step, (tff.federated_broadcast(weight), targets))


@tff.tensorflow.computation(np.float32)
def _norm(x):
  # Placed beside the argument.
  return tf.linalg.global_norm([x])


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _norms(weight, targets):
  norms = tff.federated_map(_norm, targets)
  return tff.federated_map(_norm, weight), tff.federated_sum(norms)


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _dataset_at_server(state, numbers):
  return state, tff.federated_map(_single, tff.federated_sum(numbers))


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _datasets_at_clients(factor, numbers):
  del factor
  return tff.federated_map(_single, numbers)


def _with_numpy_state(result):
  """Only a round's state is of tensors; all else is as TFF returns it."""
  if isinstance(result, tuple):
    assert isinstance(result[0], tf.Tensor)
    result = (result[0].numpy(), *result[1:])
  return result


@pytest.mark.parametrize(
  'computation, calls',
  [
    (_rows_gradient, [([[1.0], [2.0], [3.0]],)]),
    (_leaves, [()]),
    (_at_server, [(2.5,)]),
    (_datasets, [([1.0, 2.0, 4.0],), ([],)]),
    (_endless, [()]),
    (_train, [(4.0, [2.0, 8.0])] * 2),
    (_personalize, [(4.0, [2.0, 8.0])] * 2),
    (_norms, [(-4.0, [2.0, -8.0])] * 2),
    (_dataset_at_server, [(4.0, [2.0, 3.0])] * 2),
    (_datasets_at_clients, [(4.0, [2.0, 3.0])] * 2),
  ],
)
def test_results_as_stock(computation, calls, stock_context):
  # Of several calls none may see what another one left.
  with _in_process():
    found = [computation(*call) for call in calls]
  if isinstance(computation.type_signature.parameter, tff.StructType):
    found = [*map(_with_numpy_state, found)]
  with _installed(stock_context):
    expected = [computation(*call) for call in calls]
  assert _described(found) == _described(expected)


class _Pair(NamedTuple):
  y: object
  x: object


def test_datasets_hold_the_containers_that_were_declared():
  # TFF makes dicts of them, and sorts by name what it takes in order.
  @tff.tensorflow.computation
  def pairs():
    return tf.data.Dataset.range(1).map(lambda i: _Pair(0.5, i))

  with _in_process():
    assert list(pairs().as_numpy_iterator()) == [_Pair(0.5, 0)]


def test_datasets_outlive_their_computation():
  with _in_process():
    computation = tff.tensorflow.computation(
      lambda numbers: numbers.map(lambda x: 2 * x), _NUMBERS
    )
    dataset = computation([1.0, 2.0])
    del computation
  gc.collect()
  assert list(dataset.as_numpy_iterator()) == [2, 4]


@tff.tensorflow.computation(np.float32)
def _double(x):
  return 2 * x


@tff.federated_computation
def _initial():
  return tff.federated_eval(_leaves, tff.SERVER)


def test_what_stays_a_tensor():
  with _in_process():
    # An initial state, and what is computed from tensors. All else is NumPy's.
    assert all(isinstance(x, tf.Tensor) for x in tf.nest.flatten(_initial()))
    assert isinstance(_double(tf.constant(2.0)), tf.Tensor)
    assert isinstance(_at_server(tf.Variable(2.0)), tf.Tensor)
    assert isinstance(_at_server(np.float32(2.0)), np.float32)
    assert isinstance(_double(2.0), np.float32)
    # Not copied, and as those of TFF.
    array = tff.tensorflow.computation(lambda: tf.ones([1000]))()
    assert array.base is not None and not array.flags.writeable


def test_clients_are_a_list():
  with _in_process(), pytest.raises(TypeError, match='A list of clients'):
    _train(1.0, 2.0)
