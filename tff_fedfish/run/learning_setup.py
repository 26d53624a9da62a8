"""From a config to the model, process and evaluator that it describes.

Building and compiling them takes many seconds. What is built last is kept, so
that a process which trains a run and then evaluates or resumes it does so once.
"""

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
from models.model_shapes import are_matrices
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.optimizers.build import build_optimizer
from tff_fedfish.run import fingerprints, round_metrics

MAX_KEPT = 1
"""How many models, processes and evaluators are kept; graphs take memory."""

_Built = TypeVar('_Built')


def keep_last(
  build: Callable[[TrainConfig], _Built],
) -> Callable[[TrainConfig], _Built]:
  """Decorates a function to keep what it built for the last config.

  Configs that differ only where a resumed run may differ from what it was,
  such as the number of rounds, share one.
  """
  kept = {}

  @functools.wraps(build)
  def get(config):
    # The class too: two of one's own methods may share a name.
    key = type(config.algorithm), fingerprints.settings_fingerprint(config)
    if key not in kept:
      while len(kept) >= MAX_KEPT:
        del kept[next(iter(kept))]
      kept[key] = build(config)
    return kept[key]

  return get


@keep_last
def build_model(config: TrainConfig) -> ModelSpec:
  """Returns the model of a config, weights drawn from its seed."""
  shape, model_seed = config.model_shape(), config.seeds.model_seed
  marks_repeats = config.client_work.num_local_steps is not None
  if isinstance(shape, ImageModelConfig):
    return build_image_model(
      shape, model_seed=model_seed, marks_repeats=marks_repeats
    )
  return build_language_model(
    shape,
    model_seed=model_seed,
    xla=config.engine.xla,
    noise_seeds=config.algorithm.samples_labels,
    marks_repeats=marks_repeats,
  )


@keep_last
def build_learning_process(
  config: TrainConfig,
) -> tff.learning.templates.LearningProcess:
  """Returns the learning process of a config."""
  model = build_model(config)
  return config.method.build(
    config,
    model,
    client_optimizer=build_client_optimizer(config),
    server_optimizer=build_optimizer(
      config.server, are_matrices(config.model_shape())
    ),
    num_local_epochs=config.client_work.num_local_epochs,
    client_weighting=tff.learning.ClientWeighting[
      config.algorithm.client_weighting.upper()
    ],
  )


def require_trained_models(config: TrainConfig, process: Any) -> None:
  """Raises UserError unless the barrier can ask a process for its clients."""
  if not hasattr(process, 'trained_models'):
    raise UserError(
      'The Client-Server Barrier requires a process with `trained_models`, but '
      f'the one that {config.algorithm.name!r} builds has none. Build it with '
      'tff_fedfish.algorithms.slots.compose, or leave the barrier out.'
    )


def with_rates(
  process: tff.learning.templates.LearningProcess,
  state: Any,
  config: TrainConfig,
  round_num: int,
) -> Any:
  """Returns the state with the learning rates of the round that follows it.

  They follow from the config and the round, whatever the state holds: a run
  that is resumed goes on as if it had not stopped.

  Args:
    process: The run's learning process.
    state: Its state.
    config: The run's config.
    round_num: The round, >= 1.

  Returns:
    The state; the same object where all rates are constant.
  """
  slots = {'client_work': config.client_work, 'finalizer': config.server}
  rates = {
    slot: round_metrics.rate_of_round(settings, round_num)
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


def build_client_optimizer(
  config: TrainConfig,
) -> tff.learning.optimizers.Optimizer:
  """Returns the client optimizer of a config."""
  return build_optimizer(config.client_work, are_matrices(config.model_shape()))
