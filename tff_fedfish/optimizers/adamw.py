"""AdamW: Adam with weight decay that does not pass through the moments.

Loshchilov and Hutter (2019), "Decoupled weight decay regularization",
algorithm 2:

  theta <- theta - rate (Adam's step) - rate lambda theta

with the rate of the round and theta as before the step. Adam's step is that of
`tff.learning.optimizers.build_adam`, epsilon and all. TFF's own AdamW decays
every tensor, by 0.004 unless told otherwise.
"""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.optimizers import base


def build_adamw(
  learning_rate: float,
  *,
  beta_1: float = 0.9,
  beta_2: float = 0.999,
  epsilon: float = 1e-7,
  weight_decay: float = 0.0,
  is_decayed: Sequence[bool] | None = None,
) -> tff.learning.optimizers.Optimizer:
  """Builds AdamW.

  Args:
    learning_rate: The rate, >= 0.
    beta_1: Decay of the first moment, in [0, 1).
    beta_2: Decay of the second moment, in [0, 1).
    epsilon: Added to the root of the second moment before its bias is
      corrected, > 0.
    weight_decay: lambda, >= 0. With 0 the optimizer is Adam.
    is_decayed: Which of the weights' tensors decay, in their order. None: those
      of rank 2 and above.

  Returns:
    The optimizer. Its state is that of Adam.

  Raises:
    ValueError: If `weight_decay` is negative, or the number of flags is not
      that of the tensors (on the first step); from TFF, if another argument is
      out of its range.
  """
  require(weight_decay >= 0, 'weight_decay', 'at least 0', weight_decay)
  adam = tff.learning.optimizers.build_adam(
    learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon
  )
  if not weight_decay:
    return adam

  def step(state, weights, gradients):
    before, rate = tf.nest.flatten(weights), state[base.RATE]
    flags = is_decayed
    if flags is None:
      flags = [tensor.shape.rank >= 2 for tensor in before]
    state, weights = adam.next(state, weights, gradients)
    decayed = [
      new - tf.cast(rate * weight_decay, old.dtype) * old if flag else new
      for new, old, flag in zip(
        tf.nest.flatten(weights), before, flags, strict=True
      )
    ]
    return state, tf.nest.pack_sequence_as(weights, decayed)

  return base.wrap(adam, step)
