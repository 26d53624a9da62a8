"""Python values to flat lists of tensors and back, in the order of TFF types.

`tf.nest` would sort the keys of dicts.
"""

import reprlib
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.runtime import placement, tff_internals


def flatten(value: Any, value_type: tff.Type) -> list[tf.Tensor]:
  """Returns the tensors of `value` in the order of its type.

  Args:
    value: Tensors, arrays, datasets and containers of them. dtypes follow TFF:
      int32 may stand for int64; float64 may not stand for float32, nor int for
      float. A Python number must lie in the dtype's range. A list of elements
      may stand for a sequence.
    value_type: Its type; placements are looked through.

  Returns:
    Eager tensors; datasets as variants. Tensors of the right dtype are passed
    on untouched, so that they stay on their device.

  Raises:
    TypeError: If the value does not fit the type.
  """
  tensors = []
  for leaf, leaf_type in _leaves(value, value_type):
    if isinstance(leaf_type, tff.SequenceType):
      with placement.on_cpu():
        leaf = tf.data.experimental.to_variant(_dataset(leaf, leaf_type))
      tensors.append(leaf)
    elif isinstance(leaf_type, tff.TensorType):
      tensors.append(_tensor(leaf, leaf_type))
    else:
      raise TypeError(f'Values of type {leaf_type} cannot be passed.')
  return tensors


def as_array(tensor: tf.Tensor) -> np.ndarray:
  """Returns a tensor's values as a read-only array, without a copy on a CPU."""
  try:
    # `tensor.numpy()` copies. The view keeps the tensor alive.
    return np.asarray(memoryview(tensor))
  except (TypeError, ValueError, BufferError, RuntimeError):
    # bfloat16 has no buffer, nor have tensors on other devices.
    return tensor.numpy()


def to_numpy(tensor: tf.Tensor) -> Any:
  """Returns an array, a NumPy scalar or bytes; a dataset's variant itself."""
  if tensor.dtype == tf.variant:
    return tensor
  array = as_array(tensor)
  # `[()]` makes a scalar of an array without dimensions.
  return array[()] if isinstance(array, np.ndarray) else array


def holds_tensor(value: Any, value_type: tff.Type) -> bool:
  """Returns whether a value of the type is, or contains, an eager tensor."""
  return any(
    isinstance(leaf, tf.Tensor | tf.Variable)
    for leaf, _ in _leaves(value, value_type)
  )


def tensor_types(value_type: tff.Type) -> list[tff.Type]:
  """Returns the types of the tensors that `flatten` gives for the type."""
  if isinstance(value_type, tff.FederatedType):
    return tensor_types(value_type.member)
  if isinstance(value_type, tff.StructType):
    return [leaf for element in value_type for leaf in tensor_types(element)]
  return [value_type]


def unflatten(tensors: list[Any], value_type: tff.Type) -> Any:
  """Returns tensors or arrays in the Python containers of `value_type`.

  The variant of a sequence becomes a tf.data.Dataset.
  """
  return tff_internals.type_to_py_container(
    _to_struct(iter(tensors), value_type), value_type
  )


def _leaves(value, value_type):
  """Yields (leaf, its type) of a value: a tensor, a sequence or another."""
  if isinstance(value_type, tff.FederatedType):
    yield from _leaves(value, value_type.member)
  elif isinstance(value_type, tff.StructType):
    types = tff_internals.to_elements(value_type)
    try:
      container = tff_internals.from_container(value, recursive=False)
    except TypeError as error:
      raise _mismatch(value_type, value) from error
    elements = tff_internals.to_elements(container)
    # Elements without names are taken in order.
    if len(elements) != len(types) or any(
      name not in (None, expected)
      for (name, _), (expected, _) in zip(elements, types, strict=True)
    ):
      raise _mismatch(value_type, value)
    for (_, element), (_, element_type) in zip(elements, types, strict=True):
      yield from _leaves(element, element_type)
  else:
    yield value, value_type


def _tensor(value, tensor_type):
  """Returns a tensor of the type's dtype, by the rules of TFF's context."""
  dtype = tf.as_dtype(tensor_type.dtype)
  is_tensor = isinstance(value, tf.Tensor | tf.Variable)
  if not (is_tensor and value.dtype == dtype):
    if not _has_compatible_dtype(value, tensor_type.dtype.type):
      raise _mismatch(tensor_type, value)
    if is_tensor:
      value = tf.cast(value, dtype)
    elif dtype != tf.string:
      # By NumPy, as TFF does.
      value = np.asarray(value, tensor_type.dtype)
  tensor = tf.convert_to_tensor(value, dtype)
  if not tf.TensorShape(tensor_type.shape).is_compatible_with(tensor.shape):
    raise _mismatch(tensor_type, tensor)
  return tensor


def _has_compatible_dtype(value, dtype):
  if isinstance(value, tf.Tensor | tf.Variable):
    # TFF copies tensors into arrays first, of which it looks at the dtype.
    value = np.empty([], value.dtype.as_numpy_dtype)
  if isinstance(value, list | tuple):
    return all(_has_compatible_dtype(element, dtype) for element in value)
  is_array = isinstance(value, tff_internals.Array)
  return is_array and tff_internals.is_compatible_dtype(value, dtype)


def _dataset(value, sequence_type):
  """Returns a sequence as a dataset, checked: its variant carries no type."""
  if isinstance(value, list):
    value = tff_internals.make_data_set_from_elements(
      None, value, sequence_type.element
    )
  if not isinstance(value, tf.data.Dataset):
    raise _mismatch(sequence_type, value)
  spec = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
  if not sequence_type.is_assignable_from(spec):
    raise TypeError(f'A dataset of {sequence_type} is required, found {spec}.')
  return value


def _dataset_of_variant(variant, sequence_type):
  with placement.on_cpu():
    # By its graph, as TFF sends it: the dataset outlives its computation.
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant)
    return tf.data.experimental.from_variant(
      tf.raw_ops.DatasetFromGraph(graph_def=graph),
      tff_internals.type_to_tf_structure(sequence_type.element),
    )


def _mismatch(value_type, value):
  """Returns the error of a value that does not fit its type."""
  if hasattr(value, 'dtype'):
    found = f'{value.dtype.name}[{",".join(map(str, value.shape))}]'
  else:
    found = f'the {type(value).__name__} {reprlib.repr(value)}'
  required = value_type.compact_representation()
  return TypeError(f'A value of type {required} is required, found {found}.')


def _to_struct(remaining, value_type):
  # Not a closure that calls itself: that is a cycle, which would keep the
  # tensors until Python looks for cycles.
  if isinstance(value_type, tff.FederatedType):
    return _to_struct(remaining, value_type.member)
  if isinstance(value_type, tff.StructType):
    return tff_internals.Struct(
      [
        (name, _to_struct(remaining, element))
        for name, element in tff_internals.to_elements(value_type)
      ]
    )
  if isinstance(value_type, tff.SequenceType):
    return _dataset_of_variant(next(remaining), value_type)
  return next(remaining)
