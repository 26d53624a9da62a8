"""Local least squares of a client, M gradient steps at once.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", sections 3.2 and 3.3 and algorithm 2. With targets Y
(one-hot minus 1 / C) a client's loss is L(V) = s / 2 |Z V - Y|^2 and a local
step is

  V <- V - eta (s Z^T (Z V - Y) - h)

With K = Z Z^T = U diag(lambda) U^T and d = 1 - eta s lambda, the sum of the M
residuals Z V - Y that the steps see is U q in closed form,

  q   = S_1 U^T (Z V_0 - Y) + eta S_2 U^T Z h
  S_1 = sum_{m < M} d^m,   S_2 = sum_{m < M} sum_{j < m} d^j
  V_M = V_0 + M eta h - eta s Z^T U q

  letter  name        shape and type
  n, p    -           rows of the client, features without the bias
  C       -           classes
  Z       -           [n, p + 1]: (features - mean) / std, and a column of ones
  V       start       [p + 1, C], the bias last
  h       correction  [p + 1, C], of SCAFFOLD; see `control_variates.py`
  M       num_steps   int, >= 1
  eta     step_size   float, > 0
  s       loss_scale  'half_mean' 1 / n, 'mean' 2 / n, 'sum' 2

'half_mean' is half the mean over the rows of the squared error, as the authors
compute it; 'mean' is their equation 1, 'sum' their algorithm 2. Steps diverge
where eta s lambda > 2.

Features are one array, or a sequence of blocks of rows, such as memory-mapped
files. Neither Z nor a float64 copy of the features is ever in memory. NumPy;
`algorithms/tct.py` computes V_M in a graph.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.polynomial import polynomial
from scipy import linalg

from tff_fedfish.errors import require, require_one_of

Features = np.ndarray | Sequence[np.ndarray]
"""[n, p], or blocks [rows, p] of it; float16, float32 or float64."""

LOSS_SCALES = ('half_mean', 'mean', 'sum')

_BLOCK_ROWS = 256
# Entries of the columns that a Gram matrix is summed over at a time: 64 MiB.
_CHUNK_SIZE = 2**23
# A variance below this fraction of the squared mean is rounding.
VARIANCE_ROUNDING = 1e-12
# Below this M (1 - d) sums over powers of d are series.
_SERIES_BOUND = 1e-2
_SERIES_TERMS = 6


class GramBasis(NamedTuple):
  """Eigenbasis of K; as large as K.

  Attributes:
    values: lambda, float64 [n], ascending, >= 0.
    vectors: U, float64 [n, n], an eigenvector per column.
  """

  values: np.ndarray
  vectors: np.ndarray


def normalization(
  count: int, sums: np.ndarray, square_sums: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean and standard deviation of every feature.

  Args:
    count: Rows of all clients, >= 1.
    sums: Float64 [p], sum of z over them.
    square_sums: Float64 [p], sum of z^2.

  Returns:
    (mean, std), float64 [p] each. std is 1 for a feature that is constant up to
    rounding.

  Raises:
    ValueError: If `count` is below 1.
  """
  require(count >= 1, 'count', 'at least 1', count)
  mean = sums / count
  square = np.square(mean)
  variance = square_sums / count - square
  varies = variance > VARIANCE_ROUNDING * square
  return mean, np.sqrt(np.where(varies, variance, 1.0))


def gram_basis(
  features: Features, mean: np.ndarray, std: np.ndarray
) -> GramBasis:
  """Returns the eigenbasis of K, summed in float64.

  Costs n^2 p and n^3 operations and about four times the memory of K, which is
  8 n^2 bytes.

  Args:
    features: See `Features`; at least one row.
    mean: Float [p].
    std: Float [p], > 0.

  Raises:
    ValueError: If there is no row.
  """
  blocks = _blocks(features)
  num_rows = _num_rows(blocks)
  num_features = len(mean)
  # The column of ones adds 1 to every entry.
  gram = np.ones([num_rows, num_rows], order='F')
  width = max(_CHUNK_SIZE // num_rows, 1)
  for start in range(0, num_features, width):
    part = slice(start, start + width)
    columns = np.concatenate([b[:, part] for b in blocks], dtype=np.float64)
    columns -= mean[part]
    columns /= std[part]
    gram = linalg.blas.dsyrk(
      1.0, columns.T, beta=1.0, c=gram, trans=1, overwrite_c=1
    )
  # dsyrk leaves the lower triangle as it was.
  values, vectors = np.linalg.eigh(gram, UPLO='U')
  return GramBasis(np.maximum(values, 0.0), vectors)


def _blocks(features: Features) -> Sequence[np.ndarray]:
  if not isinstance(features, np.ndarray):
    return tuple(features)
  starts = range(0, len(features), _BLOCK_ROWS)
  return [features[start : start + _BLOCK_ROWS] for start in starts]


def _num_rows(blocks):
  num_rows = sum(map(len, blocks))
  require(num_rows >= 1, 'features', 'those of at least one row', num_rows)
  return num_rows


def scale_of(loss_scale: str, num_rows: int) -> float:
  """Returns s of a client with n rows, >= 1.

  Raises:
    ValueError: If the loss scale is unknown.
  """
  require_one_of('loss_scale', loss_scale, LOSS_SCALES)
  scales = 1 / num_rows, 2 / num_rows, 2.0
  return dict(zip(LOSS_SCALES, scales, strict=True))[loss_scale]


def power_sums(x: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns S_1 and S_2 for d = 1 - x.

  Args:
    x: eta s lambda, float64 [n], >= 0.
    num_steps: M.
  """
  # Binomial series, as the quotients lose all digits where x goes to 0.
  choices = range(1, _SERIES_TERMS + 2)
  terms = [float(math.comb(num_steps, k)) for k in choices]
  is_small = num_steps * x < _SERIES_BOUND
  divisor = np.where(is_small, 1.0, x)
  # Steps that diverge give infinities, for which the round is refused.
  with np.errstate(over='ignore', invalid='ignore'):
    first = (1 - np.power(1 - divisor, num_steps)) / divisor
    second = (num_steps - first) / divisor
  return (
    np.where(is_small, polynomial.polyval(-x, terms), first),
    np.where(is_small, polynomial.polyval(-x, terms[1:]), second),
  )
