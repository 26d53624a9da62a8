"""Keeps the memory of large models low; without effect for small ones.

glibc keeps freed buffers below 32 MiB, gigabytes with 335 million weights. And
TensorFlow keeps constants with the function that reads them: a model's worth of
memory for every sum that starts at zero.
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
"""Buffers from this size on are returned when they are freed, and zeros are
made on demand. With 335 million weights the peak is 13.7 GiB, and 14.1 GiB from
4 MiB on. The system clears what it gives again: with 168 million weights, 23 of
a round's 73 processor seconds, or 8 of 58 where nothing is returned."""

_M_MMAP_THRESHOLD = -3
# Dtypes of models, for which `Empty` has kernels on CPUs and GPUs alike. It has
# none for most integers on GPUs, and int32 would not be where others want it.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def return_large_buffers(tensors: Sequence[Any]) -> bool:
  """From now on returns a large model's buffers as they are freed, with glibc.

  Best before the first is made, as glibc goes on using what it has once kept.

  Args:
    tensors: Tensors of the model, or their TFF types; others do not count.

  Returns:
    Whether the model is large.
  """
  # A sequence has no dtype.
  tensors = [t for t in tensors if hasattr(t, 'dtype')]
  num_bytes = sum(_size(t.dtype, t.shape) for t in tensors)
  is_large = num_bytes >= MIN_MODEL_BYTES and hasattr(_c_library(), 'mallopt')
  if is_large:
    _c_library().mallopt(_M_MMAP_THRESHOLD, MIN_BUFFER_BYTES)
  return is_large


def return_freed_memory(broadcast: list[tf.Tensor]) -> None:
  """Returns what was freed, and from now on large buffers, of a large model."""
  if return_large_buffers(broadcast):
    _c_library().malloc_trim(0)


def make_zeros_on_demand(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces large zeros in a graph and in its functions, in place.

  TensorFlow evaluates nodes without inputs when a function first runs, and
  keeps the results. The op `Empty`, which is registered as not to be optimized,
  replaces `Const` nodes of zeros, and `Fill` nodes of constant shape and value
  0, of a floating dtype. Its output has the same name, `output`.
  """
  _replace_zeros(graph_def.node, suffix='')
  for function in graph_def.library.function:
    # A function's nodes name the outputs that they read.
    _replace_zeros(function.node_def, suffix=':output:0')


def _size(dtype, shape) -> int:
  # Some sizes are known only once they are computed.
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
      if _size(zeros.dtype, dimensions) >= MIN_BUFFER_BYTES and _is_zero(zeros):
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
        and _size(value.dtype, tf.make_ndarray(shape)) >= MIN_BUFFER_BYTES
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
