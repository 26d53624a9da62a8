"""The length of a direction over all weights of a model."""

from collections.abc import Sequence

import numpy as np


def norm(tensors: Sequence[np.ndarray]) -> float:
  """Returns the global L2 norm, summed in float64."""
  tensors = [tensor.astype(np.float64) for tensor in tensors]
  return sum(float(np.vdot(tensor, tensor)) for tensor in tensors) ** 0.5
