"""The state of a learning process as named tensors, and the weights in it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from models.model_shapes import weight_shapes
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.methods.parts import ServerShapes
from tff_fedfish.run import checkpoints, run_directory, tensor_files
from tff_fedfish.runtime import tff_internals, values

TRAINABLE_PREFIX = 'global_model_weights/trainable/'
WEIGHTS_PREFIX = 'global_model_weights/'
_FIXED_PREFIX = 'global_model_weights/non_trainable/'
_ADVICE = (
  'Use the config that the checkpoint was made with, or a new --workdir.'
)


def to_tensors(state: Any, state_type: tff.Type) -> dict[str, np.ndarray]:
  """Returns the tensors of a process's state by name, in the type's order.

  Names are paths of field names and positions, such as
  'global_model_weights/trainable/0'. The type of the state is
  `process.initialize.type_signature.result`.
  """
  tensors = map(values.as_array, values.flatten(state, state_type))
  return dict(zip(_names(state_type), tensors, strict=True))


def from_tensors(
  tensors: Mapping[str, np.ndarray],
  state_type: tff.Type,
  source: str | os.PathLike,
) -> Any:
  """Returns the state whose tensors `to_tensors` gave.

  Raises:
    UserError: If they are of another model, optimizer or method; names their
      source.
  """
  names = _names(state_type)
  shapes = [tuple(found.shape) for found in values.tensor_types(state_type)]
  _require_tensors(tensors, dict(zip(names, shapes, strict=True)), source)
  return values.unflatten([tensors[name] for name in names], state_type)


def trainable_tensors(weights: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the weights, in the model's order, by their names in a state."""
  return {f'{TRAINABLE_PREFIX}{i}': weight for i, weight in enumerate(weights)}


def server_shapes(
  config: TrainConfig, checkpoint: checkpoints.Checkpoint
) -> ServerShapes:
  """Returns the server's weights in a checkpoint, by name.

  The config is in the phase of the checkpoint.
  """
  features = config.method.features
  if features is not None and features.shapes is not None:
    return features.shapes(config)
  shape = run_directory.model_shape(config, checkpoint)
  return ServerShapes(weight_shapes(shape), {})


def model_weights(
  config: TrainConfig, checkpoint: checkpoints.Checkpoint
) -> tff.learning.models.ModelWeights:
  """Returns the server's weights in a checkpoint, in the order of the model.

  The config is in the phase of the checkpoint, whose tensors are read here.

  Raises:
    UserError: If they are of another model.
  """
  path, shapes = checkpoint.path, server_shapes(config, checkpoint)
  tensors = checkpoints.load_checkpoint(
    path, WEIGHTS_PREFIX, verify=False
  ).tensors
  trainable = trainable_by_name(tensors, shapes.trainable, path)
  fixed = trainable_by_name(
    tensors, shapes.non_trainable, path, prefix=_FIXED_PREFIX
  )
  return tff.learning.models.ModelWeights(
    tuple(trainable.values()), tuple(fixed.values())
  )


def trainable_by_name(
  tensors: Mapping[str, np.ndarray],
  shapes: Mapping[str, tuple[int, ...]],
  source: str | os.PathLike,
  *,
  prefix: str = TRAINABLE_PREFIX,
) -> dict[str, np.ndarray]:
  """Returns the model's weights by the names that the model gives them.

  Args:
    tensors: Of a checkpoint; those that are no weights are left out.
    shapes: Name -> shape in the model's order, as `weight_shapes` returns them.
    source: Where the tensors come from, for the error.
    prefix: Of the weights' names in a state.

  Raises:
    UserError: If they are of another model.
  """
  numbered = {f'{prefix}{i}': name for i, name in enumerate(shapes)}
  found = {k: v for k, v in tensors.items() if k.startswith(prefix)}
  _require_tensors(
    found, {number: shapes[name] for number, name in numbered.items()}, source
  )
  return {name: found[number] for number, name in numbered.items()}


def _require_tensors(tensors, wanted, source):
  """Raises UserError unless a checkpoint has exactly these tensors."""
  found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
  tensor_files.require_shapes(source, found, wanted, _ADVICE)


def _names(value_type: tff.Type) -> list[str]:
  if isinstance(value_type, tff.FederatedType):
    return _names(value_type.member)
  if not isinstance(value_type, tff.StructType):
    return ['']
  return [
    '/'.join(filter(None, [str(field or index), rest]))
    for index, (field, element) in enumerate(
      tff_internals.to_elements(value_type)
    )
    for rest in _names(element)
  ]
