"""From settings to the optimizer that they describe."""

from collections.abc import Sequence

import tensorflow_federated as tff

from tff_fedfish.config.optimizer_settings import OptimizerSettings
from tff_fedfish.optimizers.adamw import build_adamw
from tff_fedfish.optimizers.clipping import clip_by_global_norm
from tff_fedfish.optimizers.fed_opt import build_fed_opt
from tff_fedfish.optimizers.nesterov import build_nesterov_sgd


def build_optimizer(
  settings: OptimizerSettings, is_matrix: Sequence[bool]
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer of a client or of the server, at its base rate.

  Args:
    settings: `config.client_work` or `config.server`.
    is_matrix: Of every weight tensor, in order; see
      `models.model_shapes.are_matrices`.
  """
  optimizer = _without_clipping(settings, is_matrix)
  if settings.max_gradient_norm is None:
    return optimizer
  return clip_by_global_norm(optimizer, settings.max_gradient_norm)


def _without_clipping(settings, is_matrix):
  name, rate = settings.optimizer, settings.learning_rate
  if name == 'sgd':
    if settings.nesterov:
      return build_nesterov_sgd(rate, settings.momentum)
    return tff.learning.optimizers.build_sgdm(rate, settings.momentum or None)
  moments = dict(
    beta_1=settings.beta_1, beta_2=settings.beta_2, epsilon=settings.epsilon
  )
  if name == 'adamw':
    decays_all = settings.weight_decay_on == 'all'
    return build_adamw(
      rate,
      **moments,
      weight_decay=settings.weight_decay,
      is_decayed=[decays_all or flag for flag in is_matrix],
    )
  if name == 'adam' and settings.corrects_bias:
    return tff.learning.optimizers.build_adam(rate, **moments)
  if name == 'adagrad':
    moments['beta_1'] = 0.0
  return build_fed_opt(
    rate, name, **moments, initial_accumulator=settings.initial_accumulator
  )
