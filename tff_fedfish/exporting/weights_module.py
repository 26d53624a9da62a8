"""The weights of a model, as variables that a SavedModel holds."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf


class WeightsModule(tf.Module):
  """Weights; what is computed from them, subclasses add."""

  def __init__(self, name: str, weights: Mapping[str, np.ndarray]):
    """Copies the weights into variables.

    Args:
      name: The module's name.
      weights: By the names and in the order of the model's `weight_shapes`.
    """
    super().__init__(name=name)
    self.model_weights = [
      tf.Variable(value, trainable=False, name=name)
      for name, value in weights.items()
    ]

  def weight_tensors(self) -> tuple[tf.Tensor, ...]:
    """Returns the weights in their order, for a graph."""
    return tuple(tf.convert_to_tensor(w) for w in self.model_weights)
