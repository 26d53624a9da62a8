"""TCT's local least squares in NumPy, step by step.

Letters are those of `tff_fedfish/methods/tct/regression.py`, which takes all
steps at once.
"""

import numpy as np


def targets_of(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns Y, one-hot minus 1 / C, float64 [n, C].

  Args:
    labels: Int [n], in [0, C).
    num_classes: C.
  """
  return np.eye(num_classes)[np.asarray(labels)] - 1 / num_classes


def local_steps(
  features: np.ndarray,
  mean: np.ndarray,
  std: np.ndarray,
  targets: np.ndarray,
  start: np.ndarray,
  correction: np.ndarray,
  *,
  num_steps: int,
  step_size: float,
) -> np.ndarray:
  """Returns V after M local steps, float64 [p + 1, C].

  Args:
    features: Float [n, p].
    mean: Float [p].
    std: Float [p], > 0.
    targets: Y, float [n, C].
    start: V_0, float [p + 1, C].
    correction: h, of the same shape.
    num_steps: M.
    step_size: eta.
  """
  z = (np.asarray(features, np.float64) - mean) / std
  z = np.concatenate([z, np.ones([len(z), 1])], axis=1)
  weights = np.array(start, np.float64)
  for _ in range(num_steps):
    gradient = z.T @ (z @ weights - targets) / len(z)
    weights = weights - step_size * (gradient - correction)
  return weights
