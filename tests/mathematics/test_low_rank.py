"""Low-rank factors: what is lost, what stays, what it costs."""

import subprocess
import sys

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tff_fedfish.methods.one_shot.low_rank import (
  compress_psd,
  compressed_models,
  diagonal_models,
  kfac_rank,
)

_LENET = ((25, 6), (150, 16), (256, 120), (120, 84), (84, 10))
_LENET_SIZE = 44_190
_CNN = ((75, 32), (800, 64), (1600, 512), (512, 128), (128, 10))
_CNN_SIZE = 939_616


def _psd(seed, size, num_rows, scale=1.0):
  rows = np.random.default_rng(seed).normal(size=[num_rows, size])
  return (scale * rows.T @ rows / num_rows).astype(np.float32)


def _compress(matrix, rank, num_bits):
  return compress_psd(tf.constant(matrix), rank, num_bits).numpy()


def _by_the_book(matrix, rank, num_bits):
  """U_r, S_r and V_r quantized apart, multiplied out, projected; float64."""

  def quantize(v):
    m, levels = np.abs(v).max(), 2**num_bits - 1
    return m * np.round(levels * v / m) / levels

  u, s, vt = np.linalg.svd(matrix.astype(np.float64))
  u, s, vt = map(quantize, (u[:, :rank], s[:rank], vt[:rank]))
  product = u @ np.diag(s) @ vt
  values, vectors = np.linalg.eigh((product + product.T) / 2)
  return vectors @ np.diag(np.maximum(values, 0)) @ vectors.T


def test_by_hand():
  # Eigenvectors (1, 1) / sqrt(2) and (1, -1) / sqrt(2), eigenvalues 5 and 3.
  # Rank 1: 5 * (1/2, 1/2; 1/2, 1/2). A vector's largest entry and the only
  # eigenvalue are their scales, so they are exact.
  matrix = np.array([[4, 1], [1, 4]], np.float32)
  found = _compress(matrix, 1, 8)
  np.testing.assert_allclose(found, np.full([2, 2], 2.5), rtol=1e-5)
  # Rank 2 with one bit: 3/5 of the scale rounds to 1, so to 5 like the first.
  np.testing.assert_allclose(
    _compress(matrix, 2, 1), 5 * np.eye(2), rtol=1e-5, atol=1e-5
  )


@pytest.mark.parametrize('rank', [1, 4, 9])
def test_equals_the_singular_value_decomposition(rank):
  matrix = _psd(3, size=9, num_rows=14)
  # A step of the quantizer is 4e-3 of the largest entry.
  np.testing.assert_allclose(
    _compress(matrix, rank, 8), _by_the_book(matrix, rank, 8), atol=1e-4
  )


def test_a_matrix_within_the_rank_is_only_quantized():
  matrix = _psd(5, size=6, num_rows=20)
  found = _compress(matrix, 50, 20)
  np.testing.assert_allclose(found, matrix, atol=1e-4)
  np.testing.assert_array_equal(found, _compress(matrix, 6, 20))
  assert not np.allclose(found, _compress(matrix, 5, 20), atol=1e-3)


def test_the_leading_directions_are_kept():
  # Rank 3 and no noise: all of it, but for the quantizer.
  rows = np.random.default_rng(8).normal(size=[3, 10])
  matrix = (rows.T @ rows).astype(np.float32)
  np.testing.assert_allclose(_compress(matrix, 3, 15), matrix, atol=2e-3)


@hypothesis.given(
  st.integers(0, 10_000),
  st.integers(1, 7),
  st.integers(1, 7),
  st.integers(1, 9),
  st.sampled_from([1e-30, 1e-6, 1.0, 1e12, 1e30]),
  st.sampled_from([1, 2, 8]),
)
@hypothesis.settings(deadline=None, max_examples=100)
def test_symmetric_and_positive_semidefinite(
  seed, size, num_rows, rank, scale, num_bits
):
  found = _compress(_psd(seed, size, num_rows, scale), rank, num_bits)
  np.testing.assert_array_equal(found, found.T)
  values = np.linalg.eigvalsh(found.astype(np.float64))
  assert values[0] >= -1e-6 * values[-1]
  assert np.count_nonzero(values > 1e-5 * values[-1]) <= rank


def test_a_negative_eigenvalue_counts_as_0():
  matrix = np.diag([2.0, -1.0, 0.5]).astype(np.float32)
  np.testing.assert_allclose(
    _compress(matrix, 3, 15), np.diag([2, 0, 0.5]), atol=1e-4
  )


def test_zeros_stay():
  np.testing.assert_array_equal(
    _compress(np.zeros([4, 4], np.float32), 2, 8), np.zeros([4, 4])
  )


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_what_is_not_finite_shows(value):
  matrix = np.eye(3, dtype=np.float32)
  matrix[1, 2] = value
  assert np.all(np.isnan(_compress(matrix, 2, 8)))


def test_rank_is_checked():
  with pytest.raises(ValueError, match='`rank` must be at least 1, found 0'):
    compress_psd(tf.eye(2), 0)


def test_rank_by_hand():
  # d = 5 * 3 = 15, r1 = 2 * 5 + 2 * 3 + 2 = 18: int(30 / 18) = 1.
  assert kfac_rank([(5, 3)], 15) == 1
  # d = 7 * 6 = 42, r1 = 28: int(84 / 28) = 3; the input side only, r1 = 15: 5.
  assert kfac_rank([(7, 6)], 42) == 3
  assert kfac_rank([(7,)], 42) == 5
  # int(8 / 12) would leave nothing.
  assert kfac_rank([(4, 1)], 4) == 1


def test_ranks_of_the_papers_models():
  assert kfac_rank(_LENET, _LENET_SIZE) == 50
  assert kfac_rank(_CNN, _CNN_SIZE) == 243


def test_size_by_hand():
  # Rank 3, of (7, 2) then 3 and 2. Model 16 * 42 = 672;
  # A: 2 (7 * 3 * 9 + 32) + 3 * 9 + 32 = 501;
  # G: 2 (2 * 2 * 9 + 32) + 2 * 9 + 32 = 186. All 1359, of 32 * 42 = 1344.
  assert kfac_rank([(7, 2)], 42) == 4
  sizes = [(7, 2), (2, 1)]  # r1 = 20 + 8: int(84 / 28) = 3.
  assert kfac_rank(sizes, 42) == 3
  # (2, 1): 2 (2 * 2 * 9 + 32) + 2 * 9 + 32 = 186, 2 (9 + 32) + 9 + 32 = 123.
  bits = 672 + 501 + 186 + 186 + 123
  assert compressed_models(sizes, 42) == bits / 1344
  # Two more tensors with diagonals: 16 * (5 + 3) + 64.
  found = compressed_models(sizes, 42, diagonal_sizes=[5, 3])
  assert found == (bits + 192) / 1344


def test_sizes_of_the_papers_models():
  assert round(compressed_models(_LENET, _LENET_SIZE), 4) == 1.0340
  assert round(compressed_models(_CNN, _CNN_SIZE), 4) == 1.0247


def test_size_with_gram_matrices():
  # Dense layers only, inputs 256, 120 and 84: r1 = 2 * 460 + 3 = 923,
  # r = int(88380 / 923) = 95; capped at 84 for the last.
  sizes = ((256,), (120,), (84,))
  assert kfac_rank(sizes, _LENET_SIZE) == 95
  entries = 2 * (256 * 95 + 120 * 95 + 84 * 84) + 95 + 95 + 84
  bits = 16 * _LENET_SIZE + 9 * entries + 3 * 96
  assert compressed_models(sizes, _LENET_SIZE) == bits / (32 * _LENET_SIZE)


def test_size_with_a_diagonal():
  sizes = [a * g for a, g in _LENET]
  # 64 bits for each of 5 layers.
  expected = 1 + 5 * 64 / (32 * _LENET_SIZE)
  assert diagonal_models(sizes) == pytest.approx(expected, rel=1e-12)


def test_counting_needs_no_tensorflow():
  # Declarations of methods count, and must answer at once.
  code = (
    'import sys; from tff_fedfish.mathematics import low_rank; '
    'low_rank.compressed_models([(3, 2)], 6); '
    "sys.exit('tensorflow' in sys.modules)"
  )
  subprocess.run([sys.executable, '-c', code], check=True)
