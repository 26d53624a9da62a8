"""Keeps the memory of large models low; without effect for small ones.

glibc keeps freed buffers below 32 MiB for later, in pieces that other buffers
do not fit into: gigabytes with a model of 335 million weights. And TensorFlow
keeps constants with the function that reads them: a model's worth of memory for
every sum that starts at zero.
"""

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

MIN_MODEL_BYTES = 256 * 2**20
"""Size of a large model. Below it little is kept, and taking it again would
cost more than 1 % of a client's work."""
MIN_BUFFER_BYTES = 2**20
"""Buffers from this size on are returned when they are freed. The system clears
what it gives again: with 168 million weights that took 23 of a round's 73
processor seconds from 1 MiB on, 13 of 64 from 8 MiB on and 8 of 58 where the
library was left alone, in 7.4, 7.6 and 8.3 GiB; with 335 million the peak is
13.7 GiB from 1 MiB on and 14.1 from 4 MiB on."""
MIN_ZEROS_BYTES = 2**20
"""Smaller tensors of zeros take less than is worth a node."""

_M_MMAP_THRESHOLD = -3
# Dtypes of models, for which `Empty` has kernels on CPUs and GPUs alike. It has
# none for most integers on GPUs, and int32 would not be where others want it.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def return_large_buffers(tensors: Sequence[Any]) -> bool:
  """From now on returns large buffers to the system as they are freed.

  Best before the first large one is made: the C library goes on using what it
  has once kept. Other C libraries than glibc are left alone.

  Args:
    tensors: Tensors of a model, or their TFF types. Those that are not numeric
      do not count.

  Returns:
    Whether the model is large.
  """
  num_bytes = sum(map(_num_bytes, tensors))
  is_large = num_bytes >= MIN_MODEL_BYTES and hasattr(_c_library(), 'mallopt')
  if is_large:
    _c_library().mallopt(_M_MMAP_THRESHOLD, MIN_BUFFER_BYTES)
  return is_large


def return_freed_memory(broadcast: list[tf.Tensor]) -> None:
  """Returns what was freed so far, and large buffers from now on.

  Does nothing where the tensors that a client is sent are small.
  """
  if return_large_buffers(broadcast):
    _c_library().malloc_trim(0)


def make_zeros_on_demand(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces large zeros in a graph and in its functions, in place.

  TensorFlow evaluates nodes that depend on no input when a function first runs,
  and keeps the results with the function. The op `Empty` makes the same zeros,
  and is registered as not to be optimized. It replaces `Const` nodes of zeros,
  and `Fill` nodes of constant shape and value 0, of a floating dtype; its only
  output is called `output`, as theirs is, so that their readers stay.
  """
  _replace_zeros(graph_def.node, suffix='')
  for function in graph_def.library.function:
    # A function's nodes name the outputs that they read.
    _replace_zeros(function.node_def, suffix=':output:0')


def _num_bytes(tensor) -> int:
  # A sequence has no dtype, and a size may be known only once it is computed.
  dtype = getattr(tensor, 'dtype', None)
  if dtype is None or tf.as_dtype(dtype) == tf.string:
    return 0
  return _size(dtype, tensor.shape)


def _size(dtype, shape) -> int:
  return (tf.TensorShape(shape).num_elements() or 0) * tf.as_dtype(dtype).size


@functools.cache
def _c_library():
  return ctypes.CDLL(None)


def _replace_zeros(nodes, suffix: str) -> None:
  constants = {
    node.name + suffix: node.attr['value'].tensor
    for node in nodes
    if node.op == 'Const'
  }
  for node in list(nodes):
    if node.op == 'Const':
      zeros = node.attr['value'].tensor
      dimensions = [dimension.size for dimension in zeros.tensor_shape.dim]
      if _size(zeros.dtype, dimensions) >= MIN_ZEROS_BYTES and _is_zero(zeros):
        shape = nodes.add(name=f'{node.name}/fedfish_shape', op='Const')
        # All inputs of a constant are control inputs.
        shape.input.extend(node.input)
        shape.attr['dtype'].type = tf.int32.as_datatype_enum
        shape.attr['value'].tensor.CopyFrom(
          tf.make_tensor_proto(dimensions, tf.int32)
        )
        node.input.insert(0, shape.name + suffix)
        _become_empty(node, zeros.dtype)
    elif node.op == 'Fill':
      shape, value = map(constants.get, node.input[:2])
      if (
        shape is not None
        and shape.dtype == tf.int32.as_datatype_enum
        and value is not None
        and _is_zero(value)
        and _size(value.dtype, tf.make_ndarray(shape)) >= MIN_ZEROS_BYTES
      ):
        del node.input[1]
        _become_empty(node, value.dtype)


def _is_zero(constant) -> bool:
  """Whether a tensor proto has a floating dtype and no bit set, as -0.0 has."""
  values = [*constant.half_val, *constant.float_val, *constant.double_val]
  return (
    tf.as_dtype(constant.dtype) in _DTYPES
    and not constant.tensor_content.strip(b'\0')
    and not any(struct.pack(f'{len(values)}d', *values))
  )


def _become_empty(node, dtype) -> None:
  node.op = 'Empty'
  node.attr.clear()
  node.attr['dtype'].type = dtype
  node.attr['init'].b = True
