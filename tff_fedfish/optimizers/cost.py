"""State and operations of an optimizer, counted without TensorFlow."""

from typing import NamedTuple

from tff_fedfish.config.optimizer_settings import OptimizerSettings

# Adam's first and second moment: 3 and 4.
_MEAN, _SCALE = 3, 4
# Product with the rate, root, sum, quotient, difference.
_ADAPTIVE_STEP = 5


class OptimizerCost(NamedTuple):
  """Cost of one step, per weight."""

  num_state_tensors: int
  """Float32 numbers that the state keeps for each weight."""
  num_operations: int
  """Additions, products, divisions and roots."""


def of_settings(settings: OptimizerSettings) -> OptimizerCost:
  """Returns the cost of the optimizer of a client or of the server.

  Args:
    settings: `config.client_work` or `config.server`.
  """
  num_tensors, num_operations = _without_clipping(settings)
  if settings.max_gradient_norm is not None:
    # Quotient, square and sum for the norm; quotient and product to scale.
    num_operations += 5
  return OptimizerCost(num_tensors, num_operations)


def _without_clipping(settings):
  name = settings.optimizer
  if name == 'sgd':
    # w - rate v; v and, with Nesterov, g + mu v take a product and a sum.
    has_momentum = settings.momentum > 0
    return has_momentum, 2 + 2 * has_momentum + 2 * settings.nesterov
  if name == 'adagrad':
    # Square and sum.
    return 1, 2 + _ADAPTIVE_STEP
  if name == 'adamw':
    decay = 2 if settings.weight_decay else 0
    return 2, _MEAN + _SCALE + _ADAPTIVE_STEP + decay
  num_means = 1
  if name == 'yogi' or not settings.corrects_bias:
    # Without momentum FedOpt's listing keeps no mean.
    num_means = int(settings.beta_1 > 0)
  # Yogi: square, two differences, two products.
  scale = 5 if name == 'yogi' else _SCALE
  return 1 + num_means, _MEAN + scale + _ADAPTIVE_STEP
