"""Large zeros are made when a graph runs, not kept with it."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import kernels

from tff_fedfish.runtime import zero_tensors
from tff_fedfish.runtime.graph_function import GraphFunction

# 1 MiB of float32.
_LARGE = [512, 512]
_FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def _rewritten(function, *types):
  proto = tff.tensorflow.computation(function, *types).to_building_block().proto
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  zero_tensors.make_on_demand(graph_def)
  return proto, graph_def


def _ops(graph_def):
  nodes = list(graph_def.node)
  for function in graph_def.library.function:
    nodes += function.node_def
  return [node.op for node in nodes]


@pytest.mark.parametrize('dtype', _FLOATING)
def test_zeros_and_constants_of_zeros(dtype):
  # 1 MiB of 16 bits takes twice as many.
  shape = [512, 1024]
  proto, graph_def = _rewritten(
    lambda: (tf.zeros(shape, dtype), tf.constant(0, dtype, shape))
  )
  assert _ops(graph_def).count('Empty') == 2
  for found in GraphFunction(proto)([]):
    assert (found.dtype, found.shape) == (dtype, shape)
    assert not np.any(found.numpy())


@pytest.mark.skipif(
  not tf.test.is_built_with_cuda(), reason='TensorFlow without kernels for GPUs'
)
def test_zeros_can_be_made_on_a_gpu():
  dtypes = collections.defaultdict(set)
  for kernel in kernels.get_registered_kernels_for_op('Empty').kernel:
    # Not those whose zeros are then in the memory of the host.
    if kernel.host_memory_arg == ['shape']:
      for constraint in kernel.constraint:
        dtypes[kernel.device_type].update(constraint.allowed_values.list.type)
  floating = {dtype.as_datatype_enum for dtype in _FLOATING}
  assert floating <= dtypes['CPU'] & dtypes['GPU']


def test_zeros_in_a_function():
  @tf.function
  def add_up(x):
    return tf.foldl(lambda total, row: total + row, x, tf.zeros(_LARGE))

  proto, graph_def = _rewritten(
    lambda x: add_up(x), tff.TensorType(np.float32, [3, *_LARGE])
  )
  assert 'Empty' in _ops(graph_def)
  values = np.arange(3 * 512 * 512, dtype=np.float32).reshape(3, *_LARGE)
  (found,) = GraphFunction(proto)([tf.constant(values)])
  np.testing.assert_array_equal(found, values[0] + values[1] + values[2])


@pytest.mark.parametrize(
  'make',
  [
    lambda: tf.ones(_LARGE),
    lambda: tf.fill(_LARGE, 1e-30),
    lambda: tf.constant(2.0, shape=_LARGE),
    lambda: tf.constant(np.eye(512, dtype=np.float32)),
    lambda: tf.fill(_LARGE, False),
    # `Empty` has no kernels for these on a GPU, or other ones.
    lambda: tf.zeros(_LARGE, tf.int32),
    lambda: tf.constant(0, tf.int64, _LARGE),
    lambda: tf.zeros([2, *_LARGE], tf.uint16),
    # 1 MiB - 4 bytes.
    lambda: tf.zeros([512 * 512 - 1]),
    lambda: tf.fill([2], tf.zeros([])),
  ],
)
def test_others_stay(make):
  proto, graph_def = _rewritten(make)
  assert 'Empty' not in _ops(graph_def)
  (found,) = GraphFunction(proto)([])
  np.testing.assert_array_equal(found, make())


@pytest.mark.parametrize(
  'make', [tf.fill, lambda shape, x: tf.constant(x, shape=shape)]
)
def test_negative_zeros_stay(make):
  # Of NumPy: TensorFlow keeps eager scalars by value, and -0.0 == 0.0.
  proto, graph_def = _rewritten(lambda: make(_LARGE, np.float32(-0.0)))
  assert 'Empty' not in _ops(graph_def)
  (found,) = GraphFunction(proto)([])
  assert not np.any(found)
  assert np.all(np.signbit(found))


def test_a_shape_that_is_not_constant_stays():
  proto, graph_def = _rewritten(
    lambda shape: tf.zeros(shape), tff.TensorType(np.int32, [2])
  )
  assert 'Empty' not in _ops(graph_def)
  (found,) = GraphFunction(proto)([tf.constant(_LARGE)])
  assert found.shape == _LARGE


def test_zeros_after_a_condition():
  """Zeros wait for what their constant waits for."""

  @tf.function
  def choose(x):
    return tf.cond(x > 0, lambda: tf.zeros(_LARGE), lambda: tf.ones(_LARGE))

  proto, graph_def = _rewritten(lambda x: choose(x), np.float32)
  assert 'Empty' in _ops(graph_def)
  function = GraphFunction(proto)
  assert float(tf.reduce_sum(function([tf.constant(1.0)])[0])) == 0
  assert float(tf.reduce_sum(function([tf.constant(-1.0)])[0])) == 512 * 512
