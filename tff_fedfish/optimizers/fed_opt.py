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
| v_(-1) | 0; the paper says at least tau^2 |

TFF's own differ: its Adam and Yogi correct the bias of m and v, and its Adagrad
has epsilon inside the root.
"""

from typing import Literal

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require, require_one_of
from tff_fedfish.optimizers import base

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
) -> tff.learning.optimizers.Optimizer:
  """Builds an optimizer of the paper's algorithm 2, without bias correction.

  Args:
    learning_rate: eta, >= 0.
    rule: The rule for v.
    beta_1: Decay of m, in [0, 1). 0: no momentum, and no m in the state. The
      paper's Adagrad has 0.
    beta_2: Decay of v, in [0, 1); Adagrad does not read it.
    epsilon: tau, > 0: added to the root of v.

  Returns:
    The optimizer. Its state holds the rate, m and v.

  Raises:
    ValueError: If an argument is out of its range.
  """
  require_one_of('rule', rule, _NEXT_SCALE)
  for name, beta in (('beta_1', beta_1), ('beta_2', beta_2)):
    require(0 <= beta < 1, name, 'at least 0 and below 1', beta)
  require(epsilon > 0, 'epsilon', 'above 0', epsilon)
  next_scale = _NEXT_SCALE[rule]

  def step(rate, weight, gradient, *slots):
    # Without momentum the mean is the gradient.
    mean, scale = slots if beta_1 else (gradient, *slots)
    mean = mean + (gradient - mean) * (1 - beta_1)
    scale = next_scale(scale, tf.square(gradient), beta_2)
    change = tf.cast(rate, weight.dtype) * mean
    weight = weight - change / (tf.sqrt(scale) + epsilon)
    return (weight, mean, scale) if beta_1 else (weight, scale)

  slots = ('accumulator', 'preconditioner') if beta_1 else ('preconditioner',)
  return base.build_tensorwise(learning_rate, slots, step)
