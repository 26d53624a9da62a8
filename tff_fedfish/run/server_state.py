"""The server state as named arrays, for checkpoints, and back."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_fedfish.errors import UserError
from tff_fedfish.runtime import tff_internals, values

TRAINABLE_PREFIX = 'global_model_weights/trainable/'


def to_tensors(state: Any, state_type: tff.Type) -> dict[str, np.ndarray]:
  """Returns the state's tensors by name.

  Args:
    state: A learning process's state.
    state_type: `process.initialize.type_signature.result`.

  Returns:
    Arrays in the order of the type; names are paths of field names and
    positions, such as 'global_model_weights/trainable/0'.
  """
  tensors = values.flatten(state, state_type)
  return {
    name: values.as_array(tensor)
    for name, tensor in zip(_names(state_type), tensors, strict=True)
  }


def from_tensors(
  tensors: Mapping[str, np.ndarray],
  state_type: tff.Type,
  source: str | os.PathLike,
) -> Any:
  """Returns the state whose tensors `to_tensors` gave.

  Args:
    tensors: Arrays by name.
    state_type: The state's type.
    source: Where they come from, for the error.

  Raises:
    UserError: If they are of another model, optimizer or method.
  """
  require_tensors(
    tensors,
    {
      name: tuple(tensor_type.shape)
      for name, tensor_type in zip(
        _names(state_type), values.tensor_types(state_type), strict=True
      )
    },
    source,
  )
  return values.unflatten(
    [tensors[name] for name in _names(state_type)], state_type
  )


def trainable_by_name(
  tensors: Mapping[str, np.ndarray],
  shapes: Mapping[str, tuple[int, ...]],
  source: str | os.PathLike,
) -> dict[str, np.ndarray]:
  """Returns the model's weights by the names that the model gives them.

  Args:
    tensors: Of a checkpoint; those that are no weights are left out.
    shapes: Name -> shape in the model's order, as `weight_shapes` returns them.
    source: Where the tensors come from, for the error.

  Raises:
    UserError: If they are of another model.
  """
  numbered = {f'{TRAINABLE_PREFIX}{i}': name for i, name in enumerate(shapes)}
  found = {k: v for k, v in tensors.items() if k.startswith(TRAINABLE_PREFIX)}
  require_tensors(
    found, {number: shapes[name] for number, name in numbered.items()}, source
  )
  return {name: found[number] for number, name in numbered.items()}


def require_tensors(
  tensors: Mapping[str, np.ndarray],
  expected_shapes: Mapping[str, tuple[int, ...]],
  source: str | os.PathLike,
) -> None:
  """Raises UserError unless exactly these tensors are there, so shaped."""
  for name in sorted({*tensors, *expected_shapes}):
    found = tuple(tensors[name].shape) if name in tensors else None
    expected = expected_shapes.get(name)
    if found != expected:
      raise UserError(
        f'The checkpoint {str(source)!r} is of another model or method: '
        f'tensor {name!r} must {_have(expected)}, but it {_has(found)}. Use '
        'the config that the checkpoint was made with, or a new --workdir.'
      )


def _have(shape):
  return 'not be there' if shape is None else f'have shape {list(shape)}'


def _has(shape):
  return 'is missing' if shape is None else f'has shape {list(shape)}'


def _names(value_type: tff.Type) -> list[str]:
  if isinstance(value_type, tff.FederatedType):
    return _names(value_type.member)
  if not isinstance(value_type, tff.StructType):
    return ['']
  names = []
  for index, (field, element) in enumerate(
    tff_internals.to_elements(value_type)
  ):
    for rest in _names(element):
      names.append('/'.join(filter(None, [str(field or index), rest])))
  return names
