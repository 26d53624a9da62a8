"""How far two directions over all weights of a model agree."""

from collections.abc import Sequence

import numpy as np

Tensors = Sequence[np.ndarray]


def cosine(first: Tensors, second: Tensors) -> float:
  """Returns the cosine of the angle between two directions; 0 if one is 0."""
  return _ratio(_dot(first, second), norm(first) * norm(second))


def norm_ratio(first: Tensors, second: Tensors) -> float:
  """Returns how many times as long as the second the first is; 0 if it is 0."""
  return _ratio(norm(first), norm(second))


def norm(tensors: Tensors) -> float:
  """Returns the global L2 norm, summed in float64."""
  return _dot(tensors, tensors) ** 0.5


def _dot(first, second):
  return sum(
    float(np.vdot(a.astype(np.float64), b.astype(np.float64)))
    for a, b in zip(first, second, strict=True)
  )


def _ratio(numerator, denominator):
  return float(numerator / denominator) if denominator else 0.0
