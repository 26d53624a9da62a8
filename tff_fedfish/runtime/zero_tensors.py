"""Keeps large tensors of zeros from becoming constants of a graph.

TensorFlow evaluates what depends on no input when a function first runs, and
keeps the result with the function: a model's worth of memory for every sum that
starts at zero. The op `Empty` makes the same zeros, and is kept because
it is registered as not to be optimized.
"""

import math

import tensorflow as tf

# Smaller ones take less than is worth a node.
MIN_BYTES = 2**20
# Those of models, for which `Empty` has kernels on CPUs and GPUs alike. It has
# none for most integers on GPUs, and int32 would not be where others want it.
_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


def make_on_demand(graph_def: tf.compat.v1.GraphDef) -> None:
  """Replaces large zeros in a graph and in its functions, in place.

  Zeros are `Const` nodes that hold one value for all entries, and `Fill` nodes
  of constant shape and value, of a floating dtype. Their only output is called
  `output`, as that of `Empty` is, so that what reads them stays as it is.
  """
  _replace(graph_def.node, suffix='')
  for function in graph_def.library.function:
    # A function's nodes name the outputs that they read.
    _replace(function.node_def, suffix=':output:0')


def _replace(nodes, suffix: str) -> None:
  constants = {
    node.name + suffix: node.attr['value'].tensor
    for node in nodes
    if node.op == 'Const'
  }
  for node in list(nodes):
    if node.op == 'Const':
      zeros = node.attr['value'].tensor
      if _is_zero(zeros) and _is_large(zeros.dtype, _shape(zeros)):
        shape = nodes.add(name=f'{node.name}/fedfish_shape', op='Const')
        # All inputs of a constant are control inputs.
        shape.input.extend(node.input)
        _set_shape_value(shape, _shape(zeros))
        node.input.insert(0, shape.name + suffix)
        _become_empty(node, zeros.dtype)
    elif node.op == 'Fill':
      shape, value = map(constants.get, node.input[:2])
      if (
        shape is not None
        and shape.dtype == tf.int32.as_datatype_enum
        and value is not None
        and _is_zero(value)
        and _is_large(value.dtype, tf.make_ndarray(shape))
      ):
        del node.input[1]
        _become_empty(node, value.dtype)


def _is_zero(constant) -> bool:
  return tf.as_dtype(constant.dtype) in _DTYPES and not any(
    value if field.name == 'tensor_content' else any(map(_has_bits, value))
    for field, value in constant.ListFields()
    if field.name == 'tensor_content' or field.name.endswith('_val')
  )


def _has_bits(value) -> bool:
  # Of -0.0 the sign.
  return bool(value) or math.copysign(1, value) < 0


def _is_large(dtype, shape) -> bool:
  num_entries = tf.TensorShape(shape).num_elements()
  return num_entries * tf.as_dtype(dtype).size >= MIN_BYTES


def _shape(constant) -> list[int]:
  return [dimension.size for dimension in constant.tensor_shape.dim]


def _set_shape_value(node, shape) -> None:
  node.attr['dtype'].type = tf.int32.as_datatype_enum
  node.attr['value'].tensor.CopyFrom(
    tf.make_tensor_proto(shape, dtype=tf.int32)
  )


def _become_empty(node, dtype) -> None:
  node.op = 'Empty'
  node.attr.clear()
  node.attr['dtype'].type = dtype
  node.attr['init'].b = True
