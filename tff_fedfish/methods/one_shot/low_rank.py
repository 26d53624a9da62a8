"""Low-rank compression of Kronecker factors, and the bits that it takes.

Jhunjhunwala et al. (2024), FedFisher, appendix C, as in the authors' code: of
the singular value decomposition of a factor the leading r triples are sent,
U_r, S_r and V_r each quantized with a scale of its own. One r serves all
factors; it is such that factors and model together take about as many bits as
the model has in float32:

  r = int(2 d / r1),   r1 = sum over the factors of (2 n + 1)

  letter  name          meaning
  d       num_weights   weights of the model
  n       -             rows of a factor
  -       factor_sizes  n of the factors of every layer: (fan in, fan out) for
                        K-FAC's A and G, (fan in,) for RegMean's Gram matrix

TensorFlow is imported where it computes, so counting bits is free.
"""

import typing
from collections.abc import Iterable, Sequence

from tff_fedfish.errors import require
from tff_fedfish.methods.one_shot.quantization import (
  MODEL_BITS,
  quantize,
  quantized_bits,
)

if typing.TYPE_CHECKING:
  import tensorflow as tf

FACTOR_BITS = 8
"""s of the authors' for U_r, S_r and V_r: 9 bits with the sign."""

_FLOAT_BITS = 32


def compress_psd(
  matrix: 'tf.Tensor', rank: int, num_bits: int = FACTOR_BITS
) -> 'tf.Tensor':
  """Returns a symmetric matrix as it is after its low-rank form was sent.

  Such a matrix has U = V, its eigenvectors. Quantized, they are equal still, so
  that U_r S_r V_r^T is symmetric and positive semidefinite, which the server's
  quadratic must be.

  Args:
    matrix: Float32 [n, n], symmetric and positive semidefinite but for
      rounding. One that is not finite gives NaN in every entry.
    rank: r >= 1. Matrices with n <= r keep all triples.
    num_bits: s of `quantization.quantize`.

  Returns:
    Float32 [n, n], exactly symmetric, positive semidefinite but for rounding.

  Raises:
    ValueError: If `rank` is below 1.
  """
  import tensorflow as tf

  require(rank >= 1, 'rank', 'at least 1', rank)
  is_finite = tf.reduce_all(tf.math.is_finite(matrix))
  # On other values the decomposition fails.
  finite = tf.where(is_finite, matrix, 0.0)
  values, vectors = tf.linalg.eigh(0.5 * finite + 0.5 * tf.transpose(finite))
  # Eigenvalues come in ascending order.
  num_kept = min(rank, matrix.shape[0])
  values = quantize(tf.nn.relu(values[-num_kept:]), num_bits)
  vectors = quantize(vectors[:, -num_kept:], num_bits)
  product = tf.matmul(vectors * values, vectors, transpose_b=True)
  product = 0.5 * product + 0.5 * tf.transpose(product)
  return tf.where(is_finite, product, float('nan'))


def kfac_rank(factor_sizes: Iterable[Sequence[int]], num_weights: int) -> int:
  """Returns r, the rank of all factors, at least 1.

  Args:
    factor_sizes: Of every layer; see the module.
    num_weights: d.
  """
  r1 = sum(2 * n + 1 for sizes in factor_sizes for n in sizes)
  return max(1, 2 * num_weights // r1)


def compressed_models(
  factor_sizes: Sequence[Sequence[int]],
  num_weights: int,
  *,
  diagonal_sizes: Iterable[int] = (),
) -> float:
  """Returns the size of an upload of model and factors, in float32 models.

  The model has 16 bits a weight. As in the authors' count its scales are left
  out, 32 bits a layer, and of a symmetric matrix U_r and V_r count both.

  Args:
    factor_sizes: Of every layer; see the module.
    num_weights: d.
    diagonal_sizes: Entries of every tensor whose Fisher is sent as a quantized
      diagonal.
  """
  rank = kfac_rank(factor_sizes, num_weights)
  bits = num_weights * (MODEL_BITS + 1)
  for n in (n for sizes in factor_sizes for n in sizes):
    kept = min(n, rank)
    bits += 2 * quantized_bits(n * kept, FACTOR_BITS)
    bits += quantized_bits(kept, FACTOR_BITS)
  bits += sum(quantized_bits(n, MODEL_BITS) for n in diagonal_sizes)
  return bits / (_FLOAT_BITS * num_weights)


def diagonal_models(layer_sizes: Sequence[int]) -> float:
  """Returns the size of an upload of model and diagonal, in float32 models.

  Both have 16 bits an entry and a scale per layer: 1 + 2 L / d.

  Args:
    layer_sizes: Weights of each of the L layers.
  """
  bits = 2 * sum(quantized_bits(n, MODEL_BITS) for n in layer_sizes)
  return bits / (_FLOAT_BITS * sum(layer_sizes))
