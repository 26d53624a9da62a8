"""Bounds the global norm of the gradients that an optimizer sees.

Pascanu et al. (2013), "On the difficulty of training recurrent neural
networks", algorithm 1, over all tensors together.
"""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.algorithms.slots.delta_norm import clip_to_norm
from tff_fedfish.optimizers import base


def clip_by_global_norm(
  optimizer: tff.learning.optimizers.Optimizer, max_norm: float
) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer with gradients scaled down to a global L2 norm.

  Args:
    optimizer: The optimizer. Its state stays as it is.
    max_norm: The largest norm of all gradients together that is left as it is,
      bit for bit, > 0.

  Returns:
    The optimizer. Gradients with an entry that is not finite become NaN.

  Raises:
    ValueError: If `max_norm` is not above 0.
  """
  base.require(max_norm > 0, 'max_norm', 'above 0', max_norm)
  return _Clipped(optimizer, max_norm)


class _Clipped(base.WrappedOptimizer):
  def __init__(self, optimizer, max_norm):
    super().__init__(optimizer)
    self._max_norm = max_norm

  def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
    # Dense, as sparse gradients may name a row twice.
    gradients = tf.nest.map_structure(tf.convert_to_tensor, gradients)
    gradients, _ = clip_to_norm(gradients, self._max_norm)
    return self._optimizer.next(state, weights, gradients)
