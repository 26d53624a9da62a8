"""SGD with Nesterov momentum.

Nesterov (1983) in the form of Sutskever et al. (2013), "On the importance of
initialization and momentum in deep learning", with the weights kept at the
look-ahead point, as in PyTorch and Keras:

  v <- mu v + g
  theta <- theta - rate (g + mu v)

Plain momentum, theta - rate v, is `tff.learning.optimizers.build_sgdm`.
"""

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.optimizers import base


def build_nesterov_sgd(
  learning_rate: float, momentum: float
) -> tff.learning.optimizers.Optimizer:
  """Builds SGD with Nesterov momentum.

  Args:
    learning_rate: The rate, >= 0.
    momentum: mu, in [0, 1). With 0 the steps are those of plain SGD.

  Returns:
    The optimizer. Its state holds the rate and v, of the weights' size.

  Raises:
    ValueError: If one of them is out of its range.
  """
  in_range = 0 <= momentum < 1
  require(in_range, 'momentum', 'at least 0 and below 1', momentum)

  def step(rate, weight, gradient, velocity):
    mu = tf.cast(momentum, gradient.dtype)
    velocity = mu * velocity + gradient
    change = gradient + mu * velocity
    return weight - tf.cast(rate, weight.dtype) * change, velocity

  return base.build_tensorwise(learning_rate, ('accumulator',), step)
