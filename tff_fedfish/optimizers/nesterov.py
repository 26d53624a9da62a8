"""SGD with Nesterov momentum.

Nesterov (1983) in the form of Sutskever et al. (2013), "On the importance of
initialization and momentum in deep learning", with the weights kept at the
look-ahead point, as in PyTorch and Keras:

  v <- mu v + g
  theta <- theta - rate (g + mu v)

Plain momentum, theta - rate v, is `tff.learning.optimizers.build_sgdm`.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.optimizers import base

_VELOCITY = 'accumulator'


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
  base.require(learning_rate >= 0, 'learning_rate', 'at least 0', learning_rate)
  in_range = 0 <= momentum < 1
  base.require(in_range, 'momentum', 'at least 0 and below 1', momentum)
  return _NesterovSgd(learning_rate, momentum)


class _NesterovSgd(base.OwnOptimizer):
  def __init__(self, learning_rate, momentum):
    self._learning_rate = learning_rate
    self._momentum = momentum

  def initialize(self, specs):
    return collections.OrderedDict(
      {
        base.RATE: self._learning_rate,
        _VELOCITY: base.full_like(specs, 0),
      }
    )

  def next(self, state, weights, gradients):
    rate = state[base.RATE]

    def step(weight, velocity, gradient):
      momentum = tf.cast(self._momentum, gradient.dtype)
      velocity = momentum * velocity + gradient
      change = gradient + momentum * velocity
      return weight - tf.cast(rate, weight.dtype) * change, velocity

    weights, velocity = base.map_tensors(
      step, weights, state[_VELOCITY], gradients
    )
    state = collections.OrderedDict({base.RATE: rate, _VELOCITY: velocity})
    return state, weights
