"""Local least squares of a client, M gradient steps at once.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", sections 3.2 and 3.3 and algorithm 2. With targets Y
(one-hot minus 1 / C) a client's loss is L(V) = |Z V - Y|^2 / 2n, half the mean
over its rows, as the authors compute it, and a local step is

  V <- V - eta (Z^T (Z V - Y) / n - h)

With K = Z Z^T = U diag(lambda) U^T and d = 1 - eta lambda / n, the sum of the M
residuals Z V - Y that the steps see is U q in closed form:

  q   = S_1 U^T (Z V_0 - Y) + eta S_2 U^T Z h
  S_1 = sum_{m < M} d^m,   S_2 = sum_{m < M} sum_{j < m} d^j
  V_M = V_0 + M eta h - eta Z^T U q / n

  letter  name        shape and type
  n, p    -           rows of the client, features without the bias
  C       -           classes
  Z       -           [n, p + 1]: (features - mean) / std, and a column of ones
  V       -           [p + 1, C], the bias last
  h       correction  [p + 1, C], of SCAFFOLD
  M       num_steps   int, >= 1
  eta     step_size   float, > 0

Steps diverge where eta lambda > 2 n. U and the sums S are computed once for
each client, in NumPy; V_M in every round, in a graph.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.polynomial import polynomial
from scipy import linalg

from tff_fedfish.rounds.fold import fold
from tff_fedfish.rounds.gradients import BatchOutput, num_rows, split_batch

# Entries of the columns that a Gram matrix is summed over at a time: 64 MiB.
_CHUNK_SIZE = 2**23
# A variance below this fraction of the squared mean is rounding.
VARIANCE_ROUNDING = 1e-12
# Below this M (1 - d) sums over powers of d are series.
_SERIES_BOUND = 1e-2
_SERIES_TERMS = 6


def normalization(
  count: int, sums: np.ndarray, square_sums: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean and standard deviation of every feature, float64 [p] each.

  `sums` and `square_sums`, float64 [p], are those of z and z^2 over the rows of
  all clients. std is 1 for a feature that is constant up to rounding.
  """
  mean = sums / count
  square = np.square(mean)
  variance = square_sums / count - square
  varies = variance > VARIANCE_ROUNDING * square
  return mean, np.sqrt(np.where(varies, variance, 1.0))


def gram_basis(
  features: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the eigenbasis of K, summed in float64.

  Costs n^2 p and n^3 operations and about four times the memory of K, 8 n^2
  bytes. Neither Z nor a float64 copy of the features is ever in memory.

  Args:
    features: Float [n, p], n >= 1; it may be mapped from a file.
    mean: Float [p].
    std: Float [p], > 0.

  Returns:
    (lambda, U): float64 [n], ascending, >= 0, and [n, n], an eigenvector per
    column.
  """
  num_rows, num_features = features.shape
  # The column of ones adds 1 to every entry.
  gram = np.ones([num_rows, num_rows], order='F')
  width = max(_CHUNK_SIZE // num_rows, 1)
  for start in range(0, num_features, width):
    part = slice(start, start + width)
    columns = np.array(features[:, part], np.float64)
    columns -= mean[part]
    columns /= std[part]
    gram = linalg.blas.dsyrk(
      1.0, columns.T, beta=1.0, c=gram, trans=1, overwrite_c=1
    )
  # dsyrk leaves the lower triangle as it was.
  values, vectors = np.linalg.eigh(gram, UPLO='U')
  return np.maximum(values, 0.0), vectors


def power_sums(x: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns S_1 and S_2 for x = eta lambda / n = 1 - d, float64 [n], >= 0."""
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


def take_steps(
  functional_model: Any,
  dataset: tf.data.Dataset,
  mean: tf.Tensor,
  std: tf.Tensor,
  start: tuple[tf.Tensor, tf.Tensor],
  correction: tuple[tf.Tensor, tf.Tensor],
  *,
  num_steps: int,
  step_size: float,
) -> tuple[tuple[tf.Tensor, tf.Tensor], Any, tf.Tensor]:
  """Returns V_M, the metrics of V_0, and the number of rows.

  Args:
    functional_model: Gives loss and metrics of logits.
    dataset: Batches <x=<features=float16 [batch, p], vectors=float64 [batch,
      n], power_sums=float64 [2, n]>, y=int32 [batch]>: rows of the features
      and of U, and S_1 and S_2 in each. Where U has no columns the steps are
      taken one by one.
    mean: Float32 [p].
    std: Float32 [p], > 0.
    start: V_0, float32 [p, C] and [C].
    correction: h, of the same shapes.
    num_steps: M.
    step_size: eta.
  """
  problem = _Problem(
    dataset, mean, std, tuple(start), tuple(correction), num_steps, step_size
  )
  in_basis, metrics, count = _in_basis(problem, functional_model)
  _, _, power_sums = in_basis
  scale = 1 / tf.maximum(tf.cast(count, tf.float32), 1.0)
  solution = tf.cond(
    tf.shape(power_sums)[1] > 0,
    lambda: _at_once(problem, in_basis, scale),
    lambda: _step_by_step(problem, scale),
  )
  return solution, metrics, count


class _Problem(NamedTuple):
  """A client's least squares: its rows, and where and how its steps go."""

  dataset: tf.data.Dataset
  mean: tf.Tensor
  std: tf.Tensor
  start: Any  # V_0, kernel and bias.
  correction: Any  # h
  num_steps: int
  step_size: float

  def rows(self, batch):
    """Returns x, Z without the column of ones, and Y of a batch."""
    x, y = split_batch(batch)
    z = (tf.cast(x['features'], tf.float32) - self.mean) / self.std
    num_classes = self.start[1].shape[0]
    return x, z, tf.one_hot(y, num_classes) - 1 / num_classes


def _in_basis(problem, functional_model):
  """Returns the problem in the eigenbasis of K, the metrics of V_0, and n.

  The former is U^T (Z V_0 - Y) and U^T Z h, float64 [n, C], and S_1 and S_2,
  float64 [2, n]; without columns if there is no basis.
  """
  (v, v_bias), (h, h_bias) = problem.start, problem.correction

  def add(state, batch):
    (residuals, drifts, _), metrics, count = state
    x, z, targets = problem.rows(batch)
    _, y = split_batch(batch)
    logits = z @ v + v_bias
    loss = functional_model.loss(output=logits, label=y)
    output = BatchOutput(loss, logits, num_rows(batch))
    metrics = functional_model.update_metrics_state(
      metrics, labels=y, batch_output=output
    )
    residuals += tf.matmul(
      x['vectors'], tf.cast(logits - targets, tf.float64), transpose_a=True
    )
    drifts += tf.matmul(
      x['vectors'], tf.cast(z @ h + h_bias, tf.float64), transpose_a=True
    )
    in_basis = residuals, drifts, x['power_sums']
    return in_basis, metrics, count + num_rows(batch)

  num_vectors = fold(
    problem.dataset.take(1),
    tf.constant(0),
    lambda _, batch: tf.shape(split_batch(batch)[0]['power_sums'])[1],
  )
  zeros = tf.zeros([num_vectors, v.shape[1]], tf.float64)
  in_basis = zeros, zeros, tf.zeros([2, num_vectors], tf.float64)
  metrics = functional_model.initialize_metrics_state()
  count = tf.constant(0, tf.int64)
  return fold(problem.dataset, (in_basis, metrics, count), add)


def _at_once(problem, in_basis, scale):
  """Returns V_M, from U q, the sum of the residuals that the steps see."""
  residuals, drifts, power_sums = in_basis
  q = (
    power_sums[0][:, tf.newaxis] * residuals
    + problem.step_size * power_sums[1][:, tf.newaxis] * drifts
  )
  return _moved(
    problem,
    problem.start,
    lambda x, z, y: tf.cast(tf.matmul(x['vectors'], q), tf.float32),
    scale,
    problem.num_steps,
  )


def _step_by_step(problem, scale):
  """Returns V_M, from a pass over the features for each step."""

  def step(v, _):
    return _moved(problem, v, lambda x, z, y: z @ v[0] + v[1] - y, scale, 1)

  return fold(tf.range(problem.num_steps), problem.start, step)


def _moved(problem, v, residuals, scale, num_steps):
  """Returns V + eta (M h - Z^T R / n), with R = residuals(x, Z, Y)."""

  def add(sums, batch):
    kernel, bias = sums
    x, z, targets = problem.rows(batch)
    rows = residuals(x, z, targets)
    kernel += tf.matmul(z, rows, transpose_a=True)
    return kernel, bias + tf.reduce_sum(rows, axis=0)

  sums = fold(problem.dataset, tuple(map(tf.zeros_like, v)), add)
  return tuple(
    w + problem.step_size * (num_steps * h - scale * s)
    for w, h, s in zip(v, problem.correction, sums, strict=True)
  )
