"""From a config to its model and learning process.

Building and compiling them takes many seconds. What is built last is kept, so
that a process which trains a run and then evaluates or resumes it does so once.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, TypeVar

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
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.huggingface import pretrained
from tff_fedfish.methods import registry
from tff_fedfish.optimizers import build_optimizer
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.run import checkpoints, model_state
from tff_fedfish.run.start_model import StartModel

MAX_KEPT = 1
"""How many models, processes and evaluators are kept; graphs take memory."""

_Build = TypeVar('_Build', bound=Callable[..., Any])


def keep_built(build: _Build) -> _Build:
  """Decorates a function of a config to keep what it built last.

  Configs that differ only in settings that no graph depends on share what it
  built, such as those of a run and of its evaluation. Nothing is kept with a
  method of one's own, which may read any setting or file, draw random numbers,
  and be edited and reloaded.
  """
  kept = collections.OrderedDict()

  @functools.wraps(build)
  def get(config, **facts):
    if config.algorithm.name not in registry.BUILT_IN:
      return build(config, **facts)
    if 'num_clients' in facts and not config.method.reads_num_clients:
      # A run knows it and its evaluation does not.
      del facts['num_clients']
    key = repr((_read_by_graphs(config), facts))
    if key not in kept:
      while len(kept) >= MAX_KEPT:
        kept.popitem(last=False)
      kept[key] = build(config, **facts)
    kept.move_to_end(key)
    return kept[key]

  return get


def _read_by_graphs(config):
  """Returns everything of a config that a graph may depend on."""
  return (
    config.algorithm,
    config.client_work,
    config.local_privacy,
    config.server,
    config.model,
    config.model_shape(),
    config.phase and config.phase.name,
    config.seeds.model_seed,
    config.engine.xla,
    config.evaluation.batch_size,
    config.aggregation,
  )


@keep_built
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
  if config.method.held_model is None:
    return model
  return config.method.held_model(config, model)


@keep_built
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
    build_model(config),
    num_clients=num_clients if config.method.reads_num_clients else None,
    client_optimizer=build_client_optimizer(config),
    server_optimizer=build_optimizer(
      config.server, are_matrices(config.model_shape())
    ),
    **_training_keywords(config),
  )


def _training_keywords(config):
  """Returns the keywords of `compose` that a config sets."""
  work, privacy = config.client_work, config.local_privacy
  keywords = {
    name: getattr(work, name)
    for name in (
      'num_local_epochs',
      'max_delta_norm',
      'num_local_steps',
      'micro_batch_size',
      'keeps_optimizer_state',
    )
  }
  if privacy.is_on:
    keywords['local_privacy'] = LocalPrivacy(
      clip_norm=privacy.clip_norm,
      noise_multiplier=privacy.noise_multiplier,
      batch_size=work.local_batch_size,
      draws_batches=privacy.draws_batches,
    )
  return keywords | {'delta_bits': config.aggregation.bits}


def require_trained_models(config: TrainConfig, process: Any) -> None:
  """Raises UserError unless a process gives its clients' models.

  The Client-Server Barrier asks for them.
  """
  if not hasattr(process, 'trained_models'):
    raise UserError(
      'The Client-Server Barrier requires a process with `trained_models`, but '
      f'the one that {config.algorithm.name!r} builds has none. Build it with '
      'tff_fedfish.rounds.compose, or leave the barrier out.'
    )


def build_client_optimizer(
  config: TrainConfig,
) -> tff.learning.optimizers.Optimizer:
  """Returns the client optimizer of a config."""
  return build_optimizer(config.client_work, are_matrices(config.model_shape()))


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
      start.checkpoint, model_state.TRAINABLE_PREFIX, verify=False
    )
    given = model_state.trainable_by_name(
      loaded.tensors, start.shapes, start.checkpoint
    )
  weights = process.get_model_weights(state)
  names = weight_shapes(config.model_shape())
  trainable = tuple(
    given[name] if name in start.taken else drawn
    for name, drawn in zip(names, weights.trainable, strict=True)
  )
  return process.set_model_weights(
    state, tff.learning.models.ModelWeights(trainable, weights.non_trainable)
  )
