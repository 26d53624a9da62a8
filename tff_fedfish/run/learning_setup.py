"""From a config to its model and learning process, whose state is named here.

Building and compiling them takes many seconds. What is built last is kept, so
that a process which trains a run and then evaluates or resumes it does so once.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import (
  ModelSpec,
  build_image_model,
  build_language_model,
)
from models.image_model_config import ImageModelConfig
from models.model_shapes import are_matrices, weight_shapes
from tff_fedfish.config.learning_rates import rate_of_round
from tff_fedfish.config.optimizer_settings import OptimizerSettings
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import pretrained
from tff_fedfish.methods import registry
from tff_fedfish.methods.method import load
from tff_fedfish.methods.parts import ServerShapes
from tff_fedfish.optimizers import build_optimizer
from tff_fedfish.run import checkpoints, run_directory
from tff_fedfish.run.start_model import StartModel
from tff_fedfish.runtime import tff_internals, values

TRAINABLE_PREFIX = 'global_model_weights/trainable/'
WEIGHTS_PREFIX = 'global_model_weights/'
_FIXED_PREFIX = 'global_model_weights/non_trainable/'

MAX_KEPT = 1
"""How many models, processes and evaluators are kept; graphs take memory."""

_Build = TypeVar('_Build', bound=Callable[..., Any])


def keep_built(
  inputs: Callable[[TrainConfig], tuple[Any, ...]],
) -> Callable[[_Build], _Build]:
  """Decorates a function to keep what it built last, with built-in methods.

  Configs that give it the same inputs share what it built, such as those of a
  run and of its evaluation. Nothing is kept with a method of one's own, which
  may read any setting or file, draw random numbers, and be edited and reloaded.

  Args:
    inputs: From a config to all that the function reads of it: plain values and
      dataclasses of them, which are compared by `repr`.
  """

  def decorate(build):
    kept = {}

    @functools.wraps(build)
    def get(config, **facts):
      if config.algorithm.name not in registry.BUILT_IN:
        return build(config, **facts)
      if 'num_clients' in facts and not config.method.takes_num_clients:
        # A run knows it and its evaluation does not.
        del facts['num_clients']
      key = repr((inputs(config), facts))
      if key in kept:
        built = kept.pop(key)
      else:
        # The first is the one whose last use is longest ago.
        while len(kept) >= MAX_KEPT:
          del kept[next(iter(kept))]
        built = build(config, **facts)
      kept[key] = built
      return built

    return get

  return decorate


def inputs_of_model(config: TrainConfig) -> tuple[Any, ...]:
  """Returns what `build_model` reads of a config."""
  shared = (
    config.model_shape(),
    config.seeds.model_seed,
    config.marks_repeats,
    config.engine.xla,
  )
  if config.method.model is None:
    return shared
  # The method's own function may read any of the method's settings.
  return (*shared, config.method.model, config.algorithm)


def inputs_of_process(config: TrainConfig) -> tuple[Any, ...]:
  """Returns what `build_learning_process` reads of a config."""
  return (
    *inputs_of_model(config),
    *inputs_of_client_optimizer(config),
    config.server,
    config.client_work.num_local_epochs,
    config.algorithm.client_weighting,
    config.method.builder,
    config.method.keywords(config),
  )


def inputs_of_client_optimizer(config: TrainConfig) -> tuple[Any, ...]:
  """Returns what `build_client_optimizer` reads, the model's shape aside."""
  work, shared = config.client_work, dataclasses.fields(OptimizerSettings)
  settings = [getattr(work, field.name) for field in shared]
  return (work.optimizer, work.learning_rate, *settings)


@keep_built(inputs_of_model)
def build_model(config: TrainConfig) -> ModelSpec:
  """Returns the model of a config, or of its phase.

  Weights are drawn from its seed.
  """
  shape = config.model_shape()
  shared = {
    'model_seed': config.seeds.model_seed,
    'marks_repeats': config.marks_repeats,
  }
  if isinstance(shape, ImageModelConfig):
    model = build_image_model(shape, **shared)
  else:
    model = build_language_model(shape, xla=config.engine.xla, **shared)
  if config.method.model is None:
    return model
  return load(config.method.model)(config, model)


@keep_built(inputs_of_process)
def build_learning_process(
  config: TrainConfig, *, num_clients: int | None = None
) -> tff.learning.templates.LearningProcess:
  """Returns the learning process of a config.

  Args:
    config: The config, in its phase where it has several.
    num_clients: Clients that may take part. None: the process is not for
      training.
  """
  return config.method.build(
    config,
    build_model(config),
    num_clients=num_clients,
    client_optimizer=build_client_optimizer(config),
    server_optimizer=build_optimizer(
      config.server, are_matrices(config.model_shape())
    ),
    num_local_epochs=config.client_work.num_local_epochs,
    client_weighting=tff.learning.ClientWeighting[
      config.algorithm.client_weighting.upper()
    ],
  )


def require_declared_process(
  config: TrainConfig, process: Any, *, with_trained_models: bool
) -> None:
  """Raises UserError unless a process is what its config's method declares.

  With `with_trained_models` it must also give its clients' models, which the
  barrier asks for.
  """
  name, problem = repr(config.algorithm.name), ''
  declared = [slot.name for slot in config.kept_slots]
  built = list(getattr(process, 'kept_specs', ()))
  if declared != built:
    problem = (
      f'The METHOD of {name} must declare the slots that its builder makes, '
      f'{", ".join(built) or "none"}, but declares '
      f'{", ".join(declared) or "none"}. Correct its `slots`.'
    )
  elif with_trained_models and not hasattr(process, 'trained_models'):
    problem = (
      'The Client-Server Barrier requires a process with `trained_models`, but '
      f'the one that {name} builds has none. Build it with '
      'tff_fedfish.rounds.compose, or leave the barrier out.'
    )
  if problem:
    raise UserError(problem)


def with_rates(
  process: tff.learning.templates.LearningProcess,
  state: Any,
  config: TrainConfig,
  round_num: int,
) -> Any:
  """Returns the state with the learning rates of the round that follows it.

  They follow from the config and the round (>= 1), whatever the state holds: a
  run that is resumed goes on as if it had not stopped. Where all rates are
  constant, the same object is returned.
  """
  slots = {'client_work': config.client_work, 'finalizer': config.server}
  rates = {
    slot: rate_of_round(settings, round_num)
    for slot, settings in slots.items()
    if settings.varies_learning_rate
  }
  if not rates:
    return state
  hparams = process.get_hparams(state)
  for slot, rate in rates.items():
    # A tensor: with it the state that is returned stays tensors, too.
    hparams[slot]['learning_rate'] = tf.constant(rate, tf.float32)
  return process.set_hparams(state, hparams)


def with_start_weights(
  process: tff.learning.templates.LearningProcess,
  state: Any,
  config: TrainConfig,
  start: StartModel,
) -> Any:
  """Returns the initial state of a run with the weights that its start gives.

  Raises:
    UserError: If the checkpoint is not of the model that its run says.
  """
  if start.pretrained is not None:
    given = pretrained.read_weights(start.checkpoint, start.pretrained)
  else:
    loaded = checkpoints.load_checkpoint(
      start.checkpoint, TRAINABLE_PREFIX, verify=False
    )
    given = trainable_by_name(loaded.tensors, start.shapes, start.checkpoint)
  weights = process.get_model_weights(state)
  names = weight_shapes(config.model_shape())
  trainable = tuple(
    given[name] if name in start.taken else drawn
    for name, drawn in zip(names, weights.trainable, strict=True)
  )
  return process.set_model_weights(
    state, tff.learning.models.ModelWeights(trainable, weights.non_trainable)
  )


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
  tensors: Mapping[str, np.ndarray],
  shapes: ServerShapes,
  source: str | os.PathLike,
) -> tff.learning.models.ModelWeights:
  """Returns the weights in a checkpoint, in the order of the model.

  Args:
    tensors: Of the checkpoint; those that are no weights are left out.
    shapes: As `server_shapes` returns them.
    source: Where the tensors come from, for the error.

  Raises:
    UserError: If they are of another model.
  """
  trainable = trainable_by_name(tensors, shapes.trainable, source)
  fixed = trainable_by_name(
    tensors, shapes.non_trainable, source, prefix=_FIXED_PREFIX
  )
  return tff.learning.models.ModelWeights(
    tuple(trainable.values()), tuple(fixed.values())
  )


def build_client_optimizer(
  config: TrainConfig,
) -> tff.learning.optimizers.Optimizer:
  """Returns the client optimizer of a config."""
  return build_optimizer(config.client_work, are_matrices(config.model_shape()))


def to_tensors(state: Any, state_type: tff.Type) -> dict[str, np.ndarray]:
  """Returns the tensors of a process's state by name, in the type's order.

  Names are paths of field names and positions, such as
  'global_model_weights/trainable/0'. The type of the state is
  `process.initialize.type_signature.result`.
  """
  tensors = map(values.as_array, values.flatten(state, state_type))
  return dict(zip(_names(state_type), tensors, strict=True))


def trainable_tensors(weights: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
  """Returns the weights, in the model's order, by their names in a state."""
  return {f'{TRAINABLE_PREFIX}{i}': weight for i, weight in enumerate(weights)}


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
  require_tensors(tensors, dict(zip(names, shapes, strict=True)), source)
  return values.unflatten([tensors[name] for name in names], state_type)


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
    if found == expected:
      continue
    must, has = f'have shape {list(expected or ())}', 'is missing'
    if expected is None:
      must = 'not be there'
    if found is not None:
      has = f'has shape {list(found)}'
    raise UserError(
      f'The checkpoint {str(source)!r} is of another model or method: '
      f'tensor {name!r} must {must}, but it {has}. Use '
      'the config that the checkpoint was made with, or a new --workdir.'
    )


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
