"""Serialized computations as functions of this process."""

import gc
import os

import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context

from tff_fedfish.runtime.graph_function import GraphFunction

pytestmark = pytest.mark.usefixtures('small_heap')


def _proto(computation):
  return computation.to_building_block().proto


def test_two_computations_as_one_function():
  @tff.tensorflow.computation(np.float32, np.float32)
  def work(x, y):
    return x * y, x + y, x - y

  @tff.tensorflow.computation(*[np.float32] * 5)
  def accumulate(a, b, product, total, unread):
    return a + product, b + total

  function = GraphFunction(_proto(work), _proto(accumulate), returned=[2])
  arguments = [*map(tf.constant, [100.0, 1000.0, 5.0, 3.0])]
  # a + x y, b + (x + y), and what was asked for beside: x - y.
  assert [*map(float, function(arguments))] == [115, 1008, 2]


def test_arguments_that_are_only_waited_for_or_are_results():
  @tff.tensorflow.computation(np.float32, np.float32, np.float32)
  def three(x, y, unread):
    with tf.control_dependencies([y]):
      return x, tf.constant(7.0), x

  proto = _proto(three)
  # As TFF's compiler may leave it: the second argument itself.
  first = proto.tensorflow.result.struct.element[0].tensor
  first.tensor_name = proto.tensorflow.parameter.struct.element[
    1
  ].tensor.tensor_name
  function = GraphFunction(proto)
  arguments = [*map(tf.constant, [1.0, 2.0, 3.0])]
  assert [*map(float, function(arguments))] == [2, 7, 1]


def test_what_no_result_needs_is_not_run():
  @tff.tensorflow.computation(np.float32)
  def double(x):
    tf.debugging.assert_less(x, 5.0)
    return 2 * x

  # As in TFF, an assertion counts where something waits for it.
  assert float(GraphFunction(_proto(double))([tf.constant(9.0)])[0]) == 18


def test_other_kinds_are_refused():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.SERVER))
  def identity(x):
    return x

  with pytest.raises(ValueError, match='tensorflow computation is required'):
    GraphFunction(_proto(identity))


def _resident_bytes():
  gc.collect()
  return psutil.Process(os.getpid()).memory_info().rss


def _keeps_freed_memory():
  before = _resident_bytes()
  tf.ones([25_000_000]) + 1
  return _resident_bytes() - before > 50_000_000


@tf.function
def _sum_of_rows(x):
  # 100 MB: the allocator keeps 64 MB of freed memory at the most.
  return tf.foldl(lambda total, row: total + row, x, tf.zeros(25_000_000))


@pytest.mark.parametrize(
  ('body', 'types'),
  [
    (lambda: tf.zeros(25_000_000), []),
    (lambda x: _sum_of_rows(x), [tff.TensorType(np.float32, [2, 1])]),
  ],
)
def test_constants_are_not_kept(body, types):
  if _keeps_freed_memory():
    pytest.skip(
      'TensorFlow keeps freed memory here: oneDNN has an allocator of its own'
    )
  function = GraphFunction(_proto(tff.tensorflow.computation(body, *types)))
  arguments = [tf.zeros([2, 1]) for _ in types]
  before = _resident_bytes()
  for _ in range(2):
    (found,) = function(arguments)
    # Written to, so that the pages exist.
    assert float(tf.reduce_sum(found + 1)) == 25_000_000
    del found
  assert _resident_bytes() - before < 50_000_000


def test_options_of_other_functions_stay():
  before = context.context().function_call_options
  draw = GraphFunction(
    _proto(tff.tensorflow.computation(lambda: tf.random.uniform([3])))
  )
  one, other = draw([])[0], draw([])[0]
  # Runs at every call.
  assert float(one[0]) != float(other[0])
  assert context.context().function_call_options is before


def _edited(proto, edit):
  """Returns a copy of a computation's proto of which nodes are edited."""
  proto = type(proto).FromString(proto.SerializeToString())
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  for node in graph_def.node:
    edit(node)
  proto.tensorflow.graph_def.Pack(graph_def)
  return proto


def test_functions_go_with_one_that_fails_to_build():
  def call_with_missing(node):
    if 'PartitionedCall' in node.op:
      node.input.append('missing')

  double = tf.function(lambda x: 2 * x)
  proto = _proto(tff.tensorflow.computation(lambda x: double(x), np.float32))
  before = set(context.context().list_function_names())
  with pytest.raises(ValueError, match='missing'):
    GraphFunction(proto, _edited(proto, call_with_missing))
  gc.collect()
  assert set(context.context().list_function_names()) <= before


def test_first_output_by_its_full_name():
  def name_fully(node):
    node.input[:] = [f'{n}:0' if n == feed else n for n in node.input]

  proto = _proto(tff.tensorflow.computation(lambda x: 2 * x, np.float32))
  feed = proto.tensorflow.parameter.tensor.tensor_name.partition(':')[0]
  proto = _edited(proto, name_fully)
  assert float(GraphFunction(proto)([tf.constant(3.0)])[0]) == 6
  # Nothing feeds it.
  proto.tensorflow.ClearField('parameter')
  with pytest.raises(ValueError, match='A parameter is missing'):
    GraphFunction(proto)
