"""From settings to the optimizer that they describe."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.config.optimizer_settings import OptimizerSettings
from tff_fedfish.errors import require
from tff_fedfish.optimizers import base
from tff_fedfish.optimizers.adamw import build_adamw
from tff_fedfish.optimizers.fed_opt import build_fed_opt
from tff_fedfish.optimizers.nesterov import build_nesterov_sgd
from tff_fedfish.rounds.bounds import clip_to_norm


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


def clip_by_global_norm(
  optimizer: tff.learning.optimizers.Optimizer, max_norm: float
) -> tff.learning.optimizers.Optimizer:
  """Bounds the global norm of the gradients that an optimizer sees.

  Pascanu et al. (2013), "On the difficulty of training recurrent neural
  networks", algorithm 1, over all tensors together.

  Args:
    optimizer: The optimizer. Its state stays as it is.
    max_norm: The largest global L2 norm that is left as it is, bit for bit, >
      0.

  Returns:
    The optimizer. Gradients with an entry that is not finite become NaN.

  Raises:
    ValueError: If `max_norm` is not above 0.
  """
  require(max_norm > 0, 'max_norm', 'above 0', max_norm)

  def step(state, weights, gradients):
    # Dense, as sparse gradients may name a row twice.
    gradients = tf.nest.map_structure(tf.convert_to_tensor, gradients)
    gradients, _ = clip_to_norm(gradients, max_norm)
    return optimizer.next(state, weights, gradients)

  return base.wrap(optimizer, step)


def _without_clipping(settings, is_matrix):
  name, rate = settings.optimizer, settings.learning_rate
  if name == 'sgd':
    if settings.nesterov:
      return build_nesterov_sgd(rate, settings.momentum)
    sgd = tff.learning.optimizers.build_sgdm(rate, settings.momentum or None)
    return base.wrap(sgd, sgd.next)
  moments = dict(
    beta_1=settings.beta_1, beta_2=settings.beta_2, epsilon=settings.epsilon
  )
  if name == 'adamw':
    return build_adamw(
      rate,
      **moments,
      weight_decay=settings.weight_decay,
      is_decayed=is_matrix,
    )
  if name == 'adam' and settings.corrects_bias:
    adam = tff.learning.optimizers.build_adam(rate, **moments)
    return base.wrap(adam, adam.next)
  if name == 'adagrad':
    moments['beta_1'] = 0.0
  return build_fed_opt(rate, name, **moments)
