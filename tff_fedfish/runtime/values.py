"""Python values to flat lists of tensors and back, guided by TFF types.

Always by the TFF type, never by `tf.nest`, which sorts the keys of dicts where
TFF keeps their order.
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
    value: Tensors, arrays, datasets and containers of them. As in TFF's own
      context a dtype is widened but never narrowed, and kinds do not mix: an
      int32 array goes for int64, a float64 one not for float32, a Python int
      not for a float. A Python number must lie in the dtype's range.
    value_type: Its type; placements are looked through.

  Returns:
    Eager tensors; datasets as variants. Tensors of the right dtype are passed
    on untouched, so that they stay on their device. A sequence may also be
    given as a list of its elements, which TensorFlow converts, as in TFF.

  Raises:
    TypeError: If the value does not fit the type; says where, what is required
      and what was found.
  """
  return _flatten(value, value_type, (), _tensor)


def as_array(tensor: tf.Tensor) -> np.ndarray:
  """Returns a tensor's values as a read-only array, without a copy on a CPU."""
  try:
    # `tensor.numpy()` copies. The view keeps the tensor alive.
    return np.asarray(memoryview(tensor))
  except (TypeError, ValueError, BufferError, RuntimeError):
    # bfloat16 has no buffer, nor have tensors on other devices.
    return tensor.numpy()


def to_numpy(tensor: tf.Tensor) -> Any:
  """Returns what TFF's context returns: an array, a NumPy scalar or bytes.

  Args:
    tensor: An eager tensor. The variant of a dataset is returned itself.
  """
  if tensor.dtype == tf.variant:
    return tensor
  found = as_array(tensor)
  # Of an array without dimensions, its scalar.
  return found[()] if isinstance(found, np.ndarray) else found


def holds_tensor(value: Any, value_type: tff.Type) -> bool:
  """Returns whether a value of the type is, or contains, an eager tensor."""
  if isinstance(value_type, tff.FederatedType):
    return holds_tensor(value, value_type.member)
  if isinstance(value_type, tff.StructType):
    return any(
      holds_tensor(element, element_type)
      for _, element, element_type in _elements(value, value_type, ())
    )
  return isinstance(value, tf.Tensor | tf.Variable)


def tensor_types(value_type: tff.Type) -> list[tff.Type]:
  """Returns the types of the tensors that `flatten` gives for the type."""
  if isinstance(value_type, tff.FederatedType):
    return tensor_types(value_type.member)
  if isinstance(value_type, tff.StructType):
    return [leaf for element in value_type for leaf in tensor_types(element)]
  return [value_type]


def unflatten(tensors: list[Any], value_type: tff.Type) -> Any:
  """Returns the tensors in the Python containers of `value_type`.

  Args:
    tensors: Tensors or arrays; of a sequence, the variant of a dataset.
    value_type: A type without clients' values. A sequence becomes a
      tf.data.Dataset.
  """
  return tff_internals.type_to_py_container(
    _to_struct(iter(tensors), value_type), value_type
  )


def _flatten(value, value_type, path, to_tensor):
  """Flattens; `path` leads to the value, `to_tensor` converts the leaves."""
  if isinstance(value_type, tff.FederatedType):
    return _flatten(value, value_type.member, path, to_tensor)
  if isinstance(value_type, tff.TensorType):
    tensor = to_tensor(value, value_type, path)
    if not tf.TensorShape(value_type.shape).is_compatible_with(tensor.shape):
      raise _mismatch(
        path, f'{_a_tensor(value_type)} is', f'one of shape {tensor.shape}'
      )
    return [tensor]
  if isinstance(value_type, tff.SequenceType):
    with placement.on_cpu():
      dataset = _dataset(value, value_type, path)
      return [tf.data.experimental.to_variant(dataset)]
  if isinstance(value_type, tff.StructType):
    tensors = []
    for step, element, element_type in _elements(value, value_type, path):
      tensors += _flatten(element, element_type, (*path, step), to_tensor)
    return tensors
  raise TypeError(f'Values of type {_name(value_type)} cannot be passed.')


def _elements(value, struct_type, path):
  """Yields (name or index, element, its type) of a container, checked."""
  expected = tff_internals.to_elements(struct_type)
  try:
    container = tff_internals.from_container(value, recursive=False)
  except TypeError as error:
    raise _mismatch(path, _these(struct_type), _describe(value)) from error
  found = tff_internals.to_elements(container)
  if len(found) != len(expected):
    raise _mismatch(path, _these(struct_type), len(found))
  for index, ((found_name, element), (name, element_type)) in enumerate(
    zip(found, expected, strict=True)
  ):
    if found_name is not None and found_name != name:
      raise _mismatch(path, f'field {name!r} is', repr(found_name))
    yield index if name is None else name, element, element_type


def _tensor(value, tensor_type, path):
  """Returns a tensor of the type's dtype, by the rules of TFF's context."""
  dtype = tf.as_dtype(tensor_type.dtype)
  is_tensor = isinstance(value, tf.Tensor | tf.Variable)
  if is_tensor and value.dtype == dtype:
    return tf.convert_to_tensor(value)
  if not _has_compatible_dtype(value, tensor_type.dtype.type):
    raise _mismatch(path, f'{_a_tensor(tensor_type)} is', _describe(value))
  if is_tensor:
    return tf.cast(value, dtype)
  if dtype != tf.string:
    # By NumPy, as TFF does.
    value = np.asarray(value, tensor_type.dtype)
  try:
    return tf.convert_to_tensor(value, dtype)
  except tf.errors.InvalidArgumentError as error:
    # Strings in tensors of several shapes. TFF raises what NumPy does.
    raise ValueError(error.message) from error


def _converted_tensor(value, tensor_type, path):
  """Returns what TensorFlow makes of a value, as TFF does within lists."""
  del path
  return tf.convert_to_tensor(value, tf.as_dtype(tensor_type.dtype))


def _has_compatible_dtype(value, dtype):
  if isinstance(value, tf.Tensor | tf.Variable):
    # TFF copies tensors into arrays first, of which it looks at the dtype.
    value = np.empty([], value.dtype.as_numpy_dtype)
  if isinstance(value, list | tuple):
    return all(_has_compatible_dtype(element, dtype) for element in value)
  if not isinstance(value, tff_internals.Array):
    return False
  return tff_internals.is_compatible_dtype(value, dtype)


def _dataset(value, sequence_type, path):
  """Returns a sequence as a dataset, checked: its variant carries no type."""
  if isinstance(value, list | tuple):
    value = _dataset_of_elements(value, sequence_type.element, path)
  if not isinstance(value, tf.data.Dataset):
    raise _mismatch(
      path, 'a tf.data.Dataset or a list of its elements is', _describe(value)
    )
  found = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
  if not sequence_type.is_assignable_from(found):
    raise _mismatch(
      path, f'a dataset of type {_name(sequence_type)} is', _name(found)
    )
  return value


def _dataset_of_variant(variant, sequence_type):
  with placement.on_cpu():
    # By way of its graph, as TFF sends it: a dataset that reads variables or
    # tables takes along what they hold now.
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant)
    return tf.data.experimental.from_variant(
      tf.raw_ops.DatasetFromGraph(graph_def=graph),
      tff_internals.type_to_tf_structure(sequence_type.element),
    )


def _dataset_of_elements(elements, element_type, path):
  rows = [
    _flatten(element, element_type, (*path, index), _converted_tensor)
    for index, element in enumerate(elements)
  ]
  specs = [
    tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype))
    for leaf in tensor_types(element_type)
  ]

  def rows_in_containers():
    for row in rows:
      yield tuple(row)

  flat = tf.data.Dataset.from_generator(
    rows_in_containers, output_signature=tuple(specs)
  )
  return flat.map(lambda *row: unflatten(list(row), element_type))


def _mismatch(path, required, found):
  """Returns the error of the part of an argument to which `path` leads."""
  text = f'{required} required, found {found}.'
  if not path:
    return TypeError(text[0].upper() + text[1:])
  return TypeError(f'At {"/".join(map(str, path))}: {text}')


def _these(struct_type):
  return f'{len(struct_type)} elements, {_name(struct_type)}, are'


def _a_tensor(tensor_type):
  return f'a tensor of type {_name(tensor_type)}'


def _name(value_type):
  return value_type.compact_representation()


def _describe(value):
  if isinstance(value, np.ndarray | np.generic | tf.Tensor | tf.Variable):
    shape = ','.join(map(str, value.shape))
    return value.dtype.name + (f'[{shape}]' if shape else '')
  if isinstance(
    value, bool | int | float | complex | str | bytes | list | tuple
  ):
    return f'the {type(value).__name__} {reprlib.repr(value)}'
  return f'a {type(value).__name__}'


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
