"""Freed memory goes back; large zeros are made when a graph runs."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.framework import kernels

from tff_fedfish.runtime import large_models
from tff_fedfish.runtime.graph_function import GraphFunction

# 1 MiB of float32.
_LARGE = [512, 512]
_FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def test_memory_is_returned_of_large_models_only(monkeypatch):
  calls = []

  class Library:
    def mallopt(self, *arguments):
      calls.append(arguments)

    def malloc_trim(self, *arguments):
      calls.append(arguments)

  monkeypatch.setattr(large_models, '_c_library', Library)
  monkeypatch.setattr(large_models, 'MIN_MODEL_BYTES', 48)
  # 2 * 3 float32 and 2 int64: 24 + 16 = 40 bytes; a string has no size.
  small = [tf.zeros([2, 3]), tf.zeros([2], tf.int64), tf.constant('text')]
  large_models.return_freed_memory(small)
  # Types, as known before a model is made; some sizes are not.
  types = [tff.TensorType(np.int32, [None]), tff.SequenceType(np.float32)]
  assert not large_models.return_large_buffers(types)
  assert calls == []
  # And 2 float32 more: 48.
  large_models.return_freed_memory([*small, tf.zeros([2])])
  # M_MMAP_THRESHOLD is -3 in malloc.h.
  assert calls == [(-3, 2**20), (0,)]
  assert large_models.return_large_buffers([tff.TensorType(np.float32, [12])])
  monkeypatch.undo()
  # glibc, that of the platform that is supported, has the functions.
  assert large_models._c_library().malloc_trim(0) in (0, 1)


def _rewritten(function, *types):
  """Returns a computation's proto, and the ops of its rewritten graph."""
  proto = tff.tensorflow.computation(function, *types).to_building_block().proto
  graph_def = tf.compat.v1.GraphDef()
  proto.tensorflow.graph_def.Unpack(graph_def)
  large_models.make_zeros_on_demand(graph_def)
  nodes = list(graph_def.node)
  for library_function in graph_def.library.function:
    nodes += library_function.node_def
  return proto, [node.op for node in nodes]


@pytest.mark.parametrize('dtype', _FLOATING)
def test_zeros_and_constants_of_zeros(dtype):
  # 1 MiB of 16 bits takes twice as many.
  shape = [512, 1024]
  proto, ops = _rewritten(
    lambda: (tf.zeros(shape, dtype), tf.constant(0, dtype, shape))
  )
  assert ops.count('Empty') == 2
  for zeros in GraphFunction(proto)([]):
    assert (zeros.dtype, zeros.shape) == (dtype, shape)
    assert not np.any(zeros.numpy())


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


def test_zeros_in_functions():
  @tf.function
  def add_up(x):
    # In a branch, zeros wait for what their constant waits for.
    start = tf.cond(
      x[0, 0, 0] < 0, lambda: tf.ones(_LARGE), lambda: tf.zeros(_LARGE)
    )
    return tf.foldl(lambda total, row: total + row, x, start)

  proto, ops = _rewritten(
    lambda x: add_up(x), tff.TensorType(np.float32, [3, *_LARGE])
  )
  assert 'Empty' in ops
  values = np.arange(3 * 512 * 512, dtype=np.float32).reshape(3, *_LARGE)
  (total,) = GraphFunction(proto)([tf.constant(values)])
  np.testing.assert_array_equal(total, values[0] + values[1] + values[2])


@pytest.mark.parametrize(
  'make',
  [
    lambda: tf.ones(_LARGE),
    lambda: tf.fill(_LARGE, 1e-30),
    # Of NumPy: TensorFlow keeps eager scalars by value, and -0.0 == 0.0.
    lambda: tf.fill(_LARGE, np.float32(-0.0)),
    lambda: tf.constant(np.float32(-0.0), shape=_LARGE),
    lambda: tf.constant(np.eye(512, dtype=np.float32)),
    # `Empty` has no kernels for these on a GPU, or other ones.
    lambda: tf.zeros(_LARGE, tf.int32),
    lambda: tf.constant(0, tf.int64, _LARGE),
    # 1 MiB - 4 bytes.
    lambda: tf.zeros([512 * 512 - 1]),
    lambda: tf.fill([2], tf.zeros([])),
  ],
)
def test_others_stay(make):
  proto, ops = _rewritten(make)
  assert 'Empty' not in ops
  (found,) = GraphFunction(proto)([])
  expected = make()
  np.testing.assert_array_equal(found, expected)
  np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_a_shape_that_is_not_constant_stays():
  shape = tff.TensorType(np.int32, [2])
  proto, ops = _rewritten(lambda shape: tf.zeros(shape), shape)
  assert 'Empty' not in ops
  assert GraphFunction(proto)([tf.constant(_LARGE)])[0].shape == _LARGE
