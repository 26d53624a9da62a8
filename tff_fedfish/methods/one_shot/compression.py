"""Compression of uploads, and the bits that it takes.

Jhunjhunwala et al. (2024), FedFisher, appendix C. A tensor v is quantized
uniformly, with s bits and a sign an entry and the scale m as a float32:

  Q(v) = m round(l v / m) / l,   m = max |v|,   l = 2^s - 1

A factor (a symmetric matrix, such as A and G of K-FAC) is first cut to the
leading r triples of its singular value decomposition, U_r, S_r and V_r, each
quantized with a scale of its own. One r serves all factors, such that factors
and model take about as many bits as the model has in float32:

  r = int(2 d / r1),   r1 = sum over the factors of (2 n + 1)

with d the weights of the model and n the rows of a factor.
"""

from tff_fedfish.late import tf

MODEL_BITS = 15
"""s of models and Fisher diagonals: 16 bits with the sign."""
FACTOR_BITS = 8
"""s of U_r, S_r and V_r in the authors' code: 9 bits with the sign."""
FLOAT_BITS = 32


def quantize(
  v: 'tf.Tensor', num_bits: int, *, is_stacked: bool = False
) -> 'tf.Tensor':
  """Returns Q(v), the nearest of 2^(s + 1) - 1 evenly spaced values.

  Args:
    v: Float32 tensor of any shape, finite.
    num_bits: s, at most 23, which is all that float32 has.
    is_stacked: Whether v holds the tensors of several layers along its first
      axis: each has a scale of its own.

  Returns:
    Float32, same shape. An entry is off by at most m / (2 l) and rounding; ties
    go to the even multiple. A tensor of zeros, or one that float32 counts as
    zeros (below 1.2e-38), stays as it is.
  """
  levels = float(2**num_bits - 1)
  axes = list(range(1, len(v.shape))) if is_stacked else None
  m = tf.reduce_max(tf.abs(v), axes, keepdims=is_stacked)
  # In this order no product exceeds m.
  quantized = m * (tf.round(levels * (v / m)) / levels)
  return tf.where(m > 0, quantized, v)


def compress_factor(matrix: 'tf.Tensor', rank: int) -> 'tf.Tensor':
  """Returns a factor as the server gets it.

  A positive semidefinite matrix has U = V, its eigenvectors, also quantized, so
  U_r S_r V_r^T is positive semidefinite, as the server's quadratic must be.

  Args:
    matrix: Float32 [n, n], symmetric and positive semidefinite but for
      rounding. One that is not finite gives NaN in every entry.
    rank: r >= 1. Matrices with n <= r keep all triples.

  Returns:
    Float32 [n, n], exactly symmetric, positive semidefinite but for rounding.
  """
  is_finite = tf.reduce_all(tf.math.is_finite(matrix))
  # On other values the decomposition fails.
  finite = tf.where(is_finite, matrix, 0.0)
  values, vectors = tf.linalg.eigh(0.5 * finite + 0.5 * tf.transpose(finite))
  # Eigenvalues come in ascending order.
  num_kept = min(rank, matrix.shape[0])
  values = quantize(tf.nn.relu(values[-num_kept:]), FACTOR_BITS)
  vectors = quantize(vectors[:, -num_kept:], FACTOR_BITS)
  product = tf.matmul(vectors * values, vectors, transpose_b=True)
  product = 0.5 * product + 0.5 * tf.transpose(product)
  return tf.where(is_finite, product, float('nan'))


def quantized_bits(num_entries: int, num_bits: int = MODEL_BITS) -> int:
  """Returns the bits of a quantized tensor: s + 1 an entry, and 32 for m."""
  return num_entries * (num_bits + 1) + FLOAT_BITS


def factor_bits(num_rows: int, rank: int) -> int:
  """Returns the bits of a compressed factor; U_r and V_r count both."""
  num_kept = min(num_rows, rank)
  vectors = quantized_bits(num_rows * num_kept, FACTOR_BITS)
  return 2 * vectors + quantized_bits(num_kept, FACTOR_BITS)
