"""A user's own computations return what TFF's context returns, in its types."""

import collections
import contextlib
import gc
import warnings
from typing import NamedTuple

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import in_process_context

_AT_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_AT_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)
_WORD_AT_CLIENTS = tff.FederatedType(np.str_, tff.CLIENTS)
_NUMBERS = tff.SequenceType(np.float32)
_WORDS = tff.TensorType(np.str_, [2])


@contextlib.contextmanager
def _in_process():
  """Runs computations in process; none may be handed to TFF's own context."""
  context = in_process_context.InProcessContext()
  with (
    tff.framework.get_context_stack().install(context),
    warnings.catch_warnings(),
  ):
    warnings.filterwarnings('error', message='.*cannot run in process')
    yield
  context.close()


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


def _check(computation, calls, stock_context, known_differences=lambda x: x):
  """Compares several calls, of which none may see what another one left."""
  with _in_process():
    found = [known_differences(computation(*call)) for call in calls]
  with tff.framework.get_context_stack().install(stock_context):
    expected = [computation(*call) for call in calls]
  assert _described(found) == _described(expected)


def _table(keys):
  return tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2])), -1
  )


@tff.tensorflow.computation(np.float32)
def _variable(x):
  variable = tf.Variable(x)
  with tf.control_dependencies([variable.assign_add(1.0)]):
    return variable.read_value()


@tff.tensorflow.computation(_WORDS, np.str_)
def _static_table(keys, key):
  return _table(keys).lookup(key)


@tff.tensorflow.computation(np.str_)
def _mutable_table(key):
  table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
  with tf.control_dependencies([table.insert(key, 3)]):
    return table.size()


@tff.tensorflow.computation(np.str_, np.str_)
def _dense_table(empty_key, key):
  table = tf.lookup.experimental.DenseHashTable(
    tf.string, tf.int64, -1, empty_key, '$'
  )
  with tf.control_dependencies([table.insert(key, tf.constant(3, tf.int64))]):
    return table.size()


@tff.tensorflow.computation(np.str_)
def _table_in_function(key):
  @tf.function
  def size(key):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
    table.insert(key, 3)
    return table.size()

  return size(key)


@tff.tensorflow.computation(np.int32)
def _table_after_a_choice(number):
  # The choice is a node with a list of functions.
  chosen = tf.switch_case(
    number, [lambda: tf.constant(1), lambda: tf.constant(2)]
  )
  table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, -1)
  with tf.control_dependencies([table.insert(number, chosen)]):
    return table.lookup(number), tf.cast(table.size(), tf.int32)


@tff.tensorflow.computation(np.str_)
def _tables_in_functions(key):
  # Traced for two shapes: nodes of one name in two functions are two tables.
  @tf.function
  def size(keys):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
    table.insert(keys, tf.zeros_like(keys, tf.int32))
    return table.size()

  return size(tf.stack([key])), size(tf.stack([key, 'c', 'd']))


@tff.tensorflow.computation(np.str_)
def _table_of_dataset(key):
  def size(unused):
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int32, -1)
    with tf.control_dependencies([table.insert(key, 3)]):
      return table.size()

  sizes = tf.data.Dataset.range(1).map(size)
  return sizes.reduce(0, lambda total, size: total + tf.cast(size, tf.int32))


@tff.tensorflow.computation(tff.TensorType(np.float32, [3, 1]))
def _gradient_of_rows(weights):
  # TensorFlow places parts of it beside the argument.
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(weights, [0, 2, 2]) ** 2)
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


@tff.tensorflow.computation(_WORDS)
def _dataset_of_table(keys):
  return tf.data.Dataset.from_tensor_slices(['a', 'b']).map(_table(keys).lookup)


@tff.tensorflow.computation(np.int64)
def _dataset_of_variable(x):
  variable = tf.Variable(x)
  return tf.data.Dataset.range(2).map(lambda i: i + variable.read_value())


@pytest.mark.parametrize(
  'computation, calls',
  [
    (_variable, [(2.0,), (-4.5,)]),
    (_static_table, [(['a', 'b'], 'b'), (['b', 'a'], 'b'), (['c', 'd'], 'b')]),
    (_mutable_table, [('a',), ('b',)]),
    (_dense_table, [('', 'a'), ('e', 'b')]),
    (_table_in_function, [('a',), ('b',)]),
    (_table_after_a_choice, [(0,), (1,)]),
    (_tables_in_functions, [('a',), ('b',)]),
    (_table_of_dataset, [('a',), ('b',)]),
    (_gradient_of_rows, [([[1.0], [2.0], [3.0]],)]),
    (_leaves, [()]),
    (_at_server, [(2.5,)]),
    (_datasets, [([1.0, 2.0, 4.0],), ([],)]),
    (_endless, [()]),
    (_dataset_of_table, [(['a', 'b'],), (['b', 'c'],)]),
    (_dataset_of_variable, [(5,), (7,)]),
  ],
)
def test_local_computation_as_stock(computation, calls, stock_context):
  _check(computation, calls, stock_context)


def test_variables_and_tables_by_hand():
  with _in_process():
    # 2 + 1.
    assert _variable(2.0) == 3
    # b is the second key, then the first, then none.
    keys = (['a', 'b'], ['b', 'c'], ['c', 'd'])
    assert [_static_table(pair, 'b') for pair in keys] == [2, 1, -1]
    # Each call has a table of its own, with the one entry.
    assert [_mutable_table(key) for key in 'ab'] == [1, 1]
    assert [_dense_table('', key) for key in 'ab'] == [1, 1]
    assert [_table_in_function(key) for key in 'ab'] == [1, 1]
    assert [_table_after_a_choice(number) for number in (0, 1)] == [
      (1, 1),
      (2, 1),
    ]
    assert [_tables_in_functions(key) for key in 'ab'] == [(1, 3), (1, 3)]


def test_gradient_of_rows_by_hand():
  with _in_process():
    # 2 w for each time that a row is read: 2, 0 and 2 (2 * 3).
    found = _gradient_of_rows([[1.0], [2.0], [3.0]])
  assert found.tolist() == [[2], [0], [12]]


@tff.tensorflow.computation(np.float32, np.float32)
def _step(weight, target):
  # The gradient of (w - t)^2 / 2 is w - t.
  variable = tf.Variable(weight)
  with tf.control_dependencies([variable.assign_sub(0.5 * (weight - target))]):
    return variable.read_value()


@tff.tensorflow.computation(np.float32, np.float32)
def _add_in_variable(total, x):
  variable = tf.Variable(x)
  with tf.control_dependencies([variable.assign_add(total)]):
    return variable.read_value()


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _train(weight, targets):
  moved = tff.federated_map(_step, (tff.federated_broadcast(weight), targets))
  return tff.federated_mean(moved), tff.federated_sum(targets)


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _aggregate(state, numbers):
  add = tff.tensorflow.computation(lambda x, y: x + y, (np.float32, np.float32))
  total = tff.federated_aggregate(
    tff.federated_map(_variable, numbers),
    tff.tensorflow.computation(lambda: 100.0)(),
    _add_in_variable,
    add,
    tff.tensorflow.computation(lambda x: x, np.float32),
  )
  return state, total


@tff.federated_computation(_AT_SERVER, _WORD_AT_CLIENTS)
def _count(state, words):
  return state, tff.federated_sum(tff.federated_map(_mutable_table, words))


@tff.federated_computation(_AT_SERVER, _WORD_AT_CLIENTS)
def _count_in_function(state, words):
  sizes = tff.federated_map(_table_in_function, words)
  return state, tff.federated_sum(sizes)


@tff.federated_computation(_AT_SERVER, _AT_CLIENTS)
def _personalize(weight, targets):
  return tff.federated_map(_step, (tff.federated_broadcast(weight), targets))


@tff.tensorflow.computation(np.float32)
def _single(x):
  return tf.data.Dataset.from_tensors(x)


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
  'computation, call',
  [
    (_train, (4.0, [2.0, 8.0])),
    (_aggregate, (4.0, [2.0, 3.0])),
    (_count, (4.0, ['a', 'b', 'c'])),
    (_count_in_function, (4.0, ['a', 'b', 'c'])),
    (_personalize, (4.0, [2.0, 8.0])),
    (_dataset_at_server, (4.0, [2.0, 3.0])),
    (_datasets_at_clients, (4.0, [2.0, 3.0])),
  ],
)
def test_computation_with_clients_as_stock(computation, call, stock_context):
  _check(computation, [call, call], stock_context, _with_numpy_state)


def test_rounds_by_hand():
  with _in_process():
    # 4 - 0.5 (4 - 2) = 3 and 4 - 0.5 (4 - 8) = 6, of which the mean is 4.5.
    assert _train(4.0, [2.0, 8.0]) == (4.5, 10)
    # 100 + (2 + 1) + (3 + 1).
    assert _aggregate(4.0, [2.0, 3.0]) == (4, 107)
    # No client sees the entries of another.
    assert _count(4.0, ['a', 'b', 'c']) == (4, 3)
    assert _count_in_function(4.0, ['a', 'b', 'c']) == (4, 3)


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


def test_arrays_are_not_copied():
  large = tff.tensorflow.computation(lambda: tf.ones([1000]))
  with _in_process():
    found = large()
  # As those of TFF.
  assert not found.flags.writeable
  assert found.base is not None


@tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
def _words(words):
  return words


@tff.tensorflow.computation(_NUMBERS)
def _total(numbers):
  return numbers.reduce(0.0, lambda total, number: total + number)


@pytest.mark.parametrize(
  'computation, arguments',
  [
    (_double, (1,)),
    (_double, (tf.constant([1.0]),)),
    (_train, (1.0, 2.0)),
    (_train, (1.0, [2])),
    (_words, (5,)),
    # Of two lengths.
    (_words, ([tf.constant(['a']), tf.constant(['a', 'b'])],)),
    (_datasets, (tf.data.Dataset.range(2),)),
    (_datasets, ([1.0, 'a'],)),
  ],
)
def test_arguments_are_refused_with_the_error_of_stock(
  computation, arguments, stock_context
):
  with (
    tff.framework.get_context_stack().install(stock_context),
    pytest.raises(Exception) as expected,  # noqa: B017, PT011
  ):
    computation(*arguments)
  with _in_process(), pytest.raises(expected.type) as raised:
    computation(*arguments)
  assert raised.type is expected.type


@tff.tensorflow.computation(np.float32)
def _positive(x):
  with tf.control_dependencies(
    [tf.debugging.assert_positive(x, 'one below zero')]
  ):
    return tf.identity(x)


def test_graphs_fail_with_the_error_of_tensorflow(stock_context):
  # A difference: from TFF's process only a text comes back.
  with (
    tff.framework.get_context_stack().install(stock_context),
    pytest.raises(grpc.RpcError, match='one below zero'),
  ):
    _positive(-1.0)
  with (
    _in_process(),
    pytest.raises(tf.errors.InvalidArgumentError, match='one below zero'),
  ):
    _positive(-1.0)


@pytest.mark.parametrize(
  'computation, argument, expected, error',
  [
    (_words, ['\xe9'], ['\xe9'.encode()], UnicodeEncodeError),
    (_total, (1.0, 2.5), 3.5, TypeError),
  ],
  ids=['not ASCII', 'tuple for a sequence'],
)
def test_arguments_that_only_stock_refuses(
  computation, argument, expected, error, stock_context
):
  with (
    tff.framework.get_context_stack().install(stock_context),
    pytest.raises(error),
  ):
    computation(argument)
  with _in_process():
    assert computation(argument) == expected
