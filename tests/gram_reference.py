"""TCT's local least squares in NumPy, at once and step by step.

What `algorithms/tct.py` computes in a graph; letters and arguments are those of
`mathematics/gram_regression.py`.
"""

from collections.abc import Iterator

import numpy as np

from tff_fedfish.methods.tct.gram_regression import (
  Features,
  GramBasis,
  _blocks,
  _num_rows,
  power_sums,
  scale_of,
)


def targets_of(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns Y, one-hot minus 1 / C, float64 [n, C].

  Args:
    labels: Int [n], in [0, C).
    num_classes: C.
  """
  return np.eye(num_classes)[np.asarray(labels)] - 1 / num_classes


# Steps that diverge give infinities, which the caller sees.
@np.errstate(over='ignore', invalid='ignore')
def local_solution(
  features: Features,
  mean: np.ndarray,
  std: np.ndarray,
  basis: GramBasis,
  targets: np.ndarray,
  start: np.ndarray,
  correction: np.ndarray,
  *,
  num_steps: int,
  step_size: float,
  loss_scale: str = 'half_mean',
) -> np.ndarray:
  """Returns V after M local steps, from two passes over the features.

  Equal to `local_steps` up to rounding.

  Args:
    features: See `Features`.
    mean: Float [p].
    std: Float [p], > 0.
    basis: Of the same features, mean and std.
    targets: Y, float [n, C].
    start: V_0, float32 or float64 [p + 1, C]. Products of features are computed
      in its type.
    correction: h, of the same type and shape.
    num_steps: M.
    step_size: eta.
    loss_scale: One of `LOSS_SCALES`.

  Returns:
    V_M, type and shape of `start`.

  Raises:
    ValueError: If there is no row, or the loss scale is unknown.
  """
  blocks = _blocks(features)
  scale = scale_of(loss_scale, _num_rows(blocks))
  both = np.concatenate([start, correction], axis=1)
  products = np.concatenate(
    [
      z @ both[:-1] + both[-1]
      for z in _normalized(blocks, mean, std, start.dtype)
    ]
  )
  starts, drifts = np.split(products.astype(np.float64), 2, axis=1)
  first, second = power_sums(step_size * scale * basis.values, num_steps)
  residuals = basis.vectors.T @ (starts - targets)
  drifts = basis.vectors.T @ drifts
  residual_sum = basis.vectors @ (
    first[:, None] * residuals + step_size * second[:, None] * drifts
  )
  step = np.zeros_like(start)
  done = 0
  for z in _normalized(blocks, mean, std, start.dtype):
    _add_product(step, z, residual_sum[done : done + len(z)])
    done += len(z)
  change = num_steps * step_size * correction - step_size * scale * step
  return (start + change).astype(start.dtype)


@np.errstate(over='ignore', invalid='ignore')
def local_steps(
  features: Features,
  mean: np.ndarray,
  std: np.ndarray,
  targets: np.ndarray,
  start: np.ndarray,
  correction: np.ndarray,
  *,
  num_steps: int,
  step_size: float,
  loss_scale: str = 'half_mean',
) -> np.ndarray:
  """Returns V after M local steps, one by one: a pass over the features each.

  See `local_solution` for the arguments.
  """
  blocks = _blocks(features)
  scale = scale_of(loss_scale, _num_rows(blocks))
  weights = np.array(start)
  for _ in range(num_steps):
    gradient = np.zeros_like(start)
    done = 0
    for z in _normalized(blocks, mean, std, start.dtype):
      of_rows = targets[done : done + len(z)]
      _add_product(gradient, z, z @ weights[:-1] + weights[-1] - of_rows)
      done += len(z)
    weights -= (step_size * (scale * gradient - correction)).astype(start.dtype)
  return weights


def _normalized(blocks, mean, std, dtype) -> Iterator[np.ndarray]:
  """Yields Z by blocks, without the column of ones."""
  mean, std = mean.astype(dtype), std.astype(dtype)
  for block in blocks:
    z = block.astype(dtype)
    z -= mean
    z /= std
    yield z


def _add_product(total, z, rows):
  """Adds Z^T rows of one block, [p + 1, C]."""
  total[:-1] += z.T @ rows.astype(z.dtype)
  total[-1] += rows.sum(axis=0)
