"""RegMean's average of one dense layer: least squares on all clients' inputs.

Jin et al. (2023), "Dataless knowledge fusion by merging weights of language
models", RegMean. With X_i the inputs of the layer on client i, the kernel that
comes closest to every client's outputs on its own inputs (a = 1):

  W* = pinv(sum_i p_i G~_i) (sum_i p_i G~_i W_i)
  G~_i = a G_i + (1 - a) diag(G_i),   G_i = mean of x^T x over the rows of X_i

  letter  name       shape
  W_i     kernel     [inputs, outputs]
  G_i     gram       [inputs, inputs], symmetric
  p_i     share      the client's share in the examples
  a       shrinkage  in [0, 1]

NumPy, float64 inside.
"""

from typing import NamedTuple

import numpy as np

from tff_fedfish.errors import require


class GramSums(NamedTuple):
  """Sums over clients from which W* follows for any shrinkage; float64."""

  gram: np.ndarray
  """sum p G, [inputs, inputs]."""
  product: np.ndarray
  """sum p G W, [inputs, outputs]."""
  diagonal_product: np.ndarray
  """sum p diag(G) W, [inputs, outputs]."""


def add_client(
  sums: GramSums | None, gram: np.ndarray, kernel: np.ndarray, share: float
) -> GramSums:
  """Returns the sums with one client more; None: it is the first.

  Raises:
    ValueError: If `gram` is not [inputs, inputs].
  """
  wanted = 2 * kernel.shape[:1]
  require(gram.shape == wanted, 'gram', f'of shape {wanted}', gram.shape)
  gram = share * gram.astype(np.float64)
  terms = gram, gram @ kernel, np.diag(gram)[:, None] * kernel
  return GramSums(*(map(np.add, sums, terms) if sums else terms))


def solve(sums: GramSums, shrinkage: float) -> np.ndarray:
  """Returns W*, float64 [inputs, outputs].

  It is 0 in directions that no client's inputs have. With a = 1 those are where
  eigenvalues are below the rounding of float32 Gram matrices. With a < 1 only
  inputs that are always 0 count as such, as all else is well determined.

  Raises:
    ValueError: If `shrinkage` is not in [0, 1].
  """
  require(0 <= shrinkage <= 1, 'shrinkage', 'in [0, 1]', shrinkage)
  a = shrinkage
  gram = a * sums.gram + (1 - a) * np.diag(np.diag(sums.gram))
  product = a * sums.product + (1 - a) * sums.diagonal_product
  epsilon = np.finfo(np.float32 if a == 1 else np.float64).eps
  inverse = np.linalg.pinv(gram, rcond=epsilon * len(gram), hermitian=True)
  return inverse @ product
