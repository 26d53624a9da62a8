"""From a config to the model and the learning process it describes."""

import tensorflow_federated as tff

from models.functional_model import ModelSpec, build_language_model
from tff_fedfish.algorithms.fed_avg import build_fed_avg
from tff_fedfish.algorithms.fed_fish import build_fed_fish
from tff_fedfish.training.config import TrainConfig


def build_model(config: TrainConfig) -> ModelSpec:
  """Returns the language model of a config, weights drawn from its seed."""
  return build_language_model(
    config.transformer_config(), model_seed=config.seeds.model_seed
  )


def build_learning_process(
  config: TrainConfig, model: ModelSpec
) -> tff.learning.templates.LearningProcess:
  """Returns the learning process of a config.

  Args:
    config: The run's config.
    model: What `build_model` returned for it.
  """
  algorithm = config.algorithm
  options = dict(
    client_optimizer=build_client_optimizer(config.client_work.learning_rate),
    server_optimizer=_build_server_optimizer(config),
    num_local_epochs=config.client_work.num_local_epochs,
    client_weighting=tff.learning.ClientWeighting[
      algorithm.client_weighting.upper()
    ],
  )
  if algorithm.name == 'fed_avg':
    return build_fed_avg(model, **options)
  return build_fed_fish(
    model,
    fisher_estimator=algorithm.fisher_estimator,
    fisher_reduction=algorithm.fisher_reduction,
    relative_floor=algorithm.relative_floor,
    **options,
  )


def build_client_optimizer(
  learning_rate: float,
) -> tff.learning.optimizers.Optimizer:
  """Returns plain SGD, the client optimizer of training and fine-tuning."""
  return tff.learning.optimizers.build_sgdm(learning_rate)


def _build_server_optimizer(config):
  server = config.server
  if server.optimizer == 'sgd':
    return tff.learning.optimizers.build_sgdm(server.learning_rate)
  return tff.learning.optimizers.build_adam(
    server.learning_rate,
    beta_1=server.beta_1,
    beta_2=server.beta_2,
    epsilon=server.epsilon,
  )
