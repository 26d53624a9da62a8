"""Python values to flat lists of tensors and back, guided by TFF types.

Always by the TFF type, never by `tf.nest`, which sorts the keys of dicts where
TFF keeps their order.
"""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_fedfish.runtime import placement


def flatten(value: Any, value_type: tff.Type) -> list[tf.Tensor]:
  """Returns the tensors of `value` in the order of its type.

  Args:
    value: Tensors, arrays, datasets and containers of them.
    value_type: Its type; placements are looked through.

  Returns:
    Eager tensors; datasets as variants. Tensors of the right dtype are passed
    on untouched, so that they stay on their device. A sequence may also be
    given as a list of its elements.

  Raises:
    TypeError: If the value does not fit the type.
  """
  if isinstance(value_type, tff.FederatedType):
    return flatten(value, value_type.member)
  if isinstance(value_type, tff.TensorType):
    tensor = tf.convert_to_tensor(value, tf.as_dtype(value_type.dtype))
    if not tf.TensorShape(value_type.shape).is_compatible_with(tensor.shape):
      raise TypeError(
        f'A tensor of type {value_type.compact_representation()} is required, '
        f'found one of shape {tensor.shape}.'
      )
    return [tensor]
  if isinstance(value_type, tff.SequenceType):
    with placement.on_cpu():
      return [tf.data.experimental.to_variant(_dataset(value, value_type))]
  if isinstance(value_type, tff.StructType):
    expected = structure.to_elements(value_type)
    found = structure.to_elements(
      structure.from_container(value, recursive=False)
    )
    if len(found) != len(expected):
      raise TypeError(
        f'{len(expected)} elements are required, found {len(found)}: '
        f'{value_type.compact_representation()}.'
      )
    tensors = []
    for (found_name, element), (name, element_type) in zip(
      found, expected, strict=True
    ):
      if found_name is not None and found_name != name:
        raise TypeError(f'Field {name!r} is required, found {found_name!r}.')
      tensors.extend(flatten(element, element_type))
    return tensors
  raise TypeError(f'Values of type {value_type} cannot be passed.')


def as_array(tensor: tf.Tensor) -> np.ndarray:
  """Returns a tensor's values as a read-only array, without a copy on a CPU."""
  try:
    # `tensor.numpy()` copies. The view keeps the tensor alive.
    return np.asarray(memoryview(tensor))
  except (TypeError, ValueError, BufferError, RuntimeError):
    # bfloat16 has no buffer, nor have tensors on other devices.
    return tensor.numpy()


def tensor_types(value_type: tff.Type) -> list[tff.Type]:
  """Returns the types of the tensors that `flatten` gives for the type."""
  if isinstance(value_type, tff.FederatedType):
    return tensor_types(value_type.member)
  if isinstance(value_type, tff.StructType):
    return [leaf for element in value_type for leaf in tensor_types(element)]
  return [value_type]


def num_tensors(value_type: tff.Type) -> int:
  """Returns how many tensors `flatten` gives for the type."""
  return len(tensor_types(value_type))


def unflatten(tensors: list[Any], value_type: tff.Type) -> Any:
  """Returns the tensors in the Python containers of `value_type`."""
  return _to_containers(_to_struct(iter(tensors), value_type), value_type)


def _dataset(value, sequence_type):
  """Returns a sequence as a dataset, checked: its variant carries no type."""
  if isinstance(value, list | tuple):
    value = _dataset_of_elements(value, sequence_type.element)
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(
      'A tf.data.Dataset or a list of its elements is required, found '
      f'{type(value).__name__}.'
    )
  found = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
  sequence_type.check_assignable_from(found)
  return value


def _dataset_of_elements(elements, element_type):
  rows = [flatten(element, element_type) for element in elements]
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


def _to_struct(remaining, value_type):
  # Not a closure that calls itself: that is a cycle, which would keep the
  # tensors until Python looks for cycles.
  if isinstance(value_type, tff.FederatedType):
    return _to_struct(remaining, value_type.member)
  if isinstance(value_type, tff.StructType):
    return structure.Struct(
      [
        (name, _to_struct(remaining, element))
        for name, element in structure.to_elements(value_type)
      ]
    )
  return next(remaining)


def _to_containers(value, value_type):
  if isinstance(value_type, tff.StructType) and any(
    isinstance(element, tff.FederatedType) for element in value_type
  ):
    # A struct of placed values: TFF converts only placed structs.
    value = structure.Struct(
      [
        (name, _to_containers(element, element_type))
        for (name, element_type), element in zip(
          structure.to_elements(value_type), value, strict=True
        )
      ]
    )
  return type_conversions.type_to_py_container(value, value_type)
