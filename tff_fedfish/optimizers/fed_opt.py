"""FedOpt's adaptive server optimizers, as the paper lists them.

Reddi et al. (2021), "Adaptive federated optimization", algorithm 2:

  m_t = beta_1 m_(t-1) + (1 - beta_1) Delta_t
  v_t = v_(t-1) + Delta_t^2                                          Adagrad
  v_t = v_(t-1) - (1 - beta_2) Delta_t^2 sign(v_(t-1) - Delta_t^2)   Yogi
  v_t = beta_2 v_(t-1) + (1 - beta_2) Delta_t^2                      Adam
  x_(t+1) = x_t + eta m_t / (sqrt(v_t) + tau)

| paper | here |
|---|---|
| Delta_t | minus the gradient |
| eta, tau | `learning_rate`, `epsilon` |
| v_(-1) | `initial_accumulator` in every entry |

TFF's own differ: its Adam and Yogi correct the bias of m and v, and its Adagrad
has epsilon inside the root.
"""

import collections
from typing import Literal

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.optimizers import base

_MOMENTUM = 'accumulator'
_SCALE = 'preconditioner'

_NEXT_SCALE = {
  'adagrad': lambda v, squared, beta_2: v + squared,
  'adam': lambda v, squared, beta_2: v + (squared - v) * (1 - beta_2),
  'yogi': lambda v, squared, beta_2: (
    v - (1 - beta_2) * squared * tf.sign(v - squared)
  ),
}


def build_fed_opt(
  learning_rate: float,
  rule: Literal['adagrad', 'adam', 'yogi'],
  *,
  beta_1: float = 0.9,
  beta_2: float = 0.99,
  epsilon: float = 1e-3,
  initial_accumulator: float = 0.0,
) -> tff.learning.optimizers.Optimizer:
  """Builds an optimizer of the paper's algorithm 2, without bias correction.

  Args:
    learning_rate: eta, >= 0.
    rule: The rule for v.
    beta_1: Decay of m, in [0, 1). 0: no momentum, and no m in the state. The
      paper's Adagrad has 0.
    beta_2: Decay of v, in [0, 1); Adagrad does not read it.
    epsilon: tau, > 0: added to the root of v.
    initial_accumulator: v before round 1, >= 0; the paper says at least tau^2.

  Returns:
    The optimizer. Its state holds the rate, m and v.

  Raises:
    ValueError: If an argument is out of its range.
  """
  rules = f'one of {", ".join(_NEXT_SCALE)}'
  base.require(rule in _NEXT_SCALE, 'rule', rules, rule)
  base.require(learning_rate >= 0, 'learning_rate', 'at least 0', learning_rate)
  for name, beta in (('beta_1', beta_1), ('beta_2', beta_2)):
    base.require(0 <= beta < 1, name, 'at least 0 and below 1', beta)
  base.require(epsilon > 0, 'epsilon', 'above 0', epsilon)
  initial = initial_accumulator
  base.require(initial >= 0, 'initial_accumulator', 'at least 0', initial)
  return _FedOpt(
    learning_rate, rule, beta_1, beta_2, epsilon, initial_accumulator
  )


class _FedOpt(base.OwnOptimizer):
  def __init__(
    self, learning_rate, rule, beta_1, beta_2, epsilon, initial_accumulator
  ):
    self._learning_rate = learning_rate
    self._next_scale = _NEXT_SCALE[rule]
    self._beta_1, self._beta_2 = beta_1, beta_2
    self._epsilon = epsilon
    self._initial_accumulator = initial_accumulator

  def initialize(self, specs):
    state = collections.OrderedDict({base.RATE: self._learning_rate})
    if self._beta_1:
      state[_MOMENTUM] = base.full_like(specs, 0)
    state[_SCALE] = base.full_like(specs, self._initial_accumulator)
    return state

  def next(self, state, weights, gradients):
    rate = state[base.RATE]

    def step(weight, mean, scale, gradient):
      mean = mean + (gradient - mean) * (1 - self._beta_1)
      scale = self._next_scale(scale, tf.square(gradient), self._beta_2)
      change = tf.cast(rate, weight.dtype) * mean
      return weight - change / (tf.sqrt(scale) + self._epsilon), mean, scale

    weights, means, scales = base.map_tensors(
      step,
      weights,
      # Without momentum the mean is the gradient.
      state.get(_MOMENTUM, gradients),
      state[_SCALE],
      gradients,
    )
    state = collections.OrderedDict({base.RATE: rate})
    if self._beta_1:
      state[_MOMENTUM] = means
    state[_SCALE] = scales
    return state, weights
