"""Quantized tensors, low-rank factors, and what uploads cost."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from models.image_model_config import ImageModelConfig
from tff_fedfish.methods.one_shot.compression import compress_factor, quantize
from tff_fedfish.methods.one_shot.uploads import (
  UploadKind,
  factor_rank,
  uploaded_models,
)

_LENET = ImageModelConfig(name='lenet', num_classes=10, image_shape=(28, 28, 1))
_CNN = ImageModelConfig(
  name='fed_net_cnn', num_classes=10, image_shape=(32, 32, 3)
)
_ANY_VECTOR = hypothesis_numpy.arrays(
  np.float32,
  st.integers(0, 7),
  elements=st.floats(
    allow_nan=False, allow_infinity=False, width=32, allow_subnormal=True
  ),
)


def _quantize(values, num_bits, **options):
  return quantize(tf.constant(values, tf.float32), num_bits, **options).numpy()


@pytest.mark.parametrize(
  ('num_bits', 'values', 'expected', 'is_stacked'),
  [
    # V9. m = 1, l = 3: 1.5, -3, 0.78, 0, 2.7 round to 2, -3, 1, 0, 3.
    (2, [0.5, -1.0, 0.26, 0.0, 0.9], [2 / 3, -1, 1 / 3, 0, 1], False),
    # m = 4, l = 3: 3/4 of each of -4, 3, 1, 0.5 is -3, 2.25, 0.75, 0.375.
    (2, [[-4.0, 3.0], [1.0, 0.5]], [[-4, 8 / 3], [4 / 3, 0]], False),
    # Ties go to the even multiple: 0.5 to 0; 3.5 to 4.
    (1, [0.5, 1.0], [0, 1], False),
    (3, [-0.5, 1.0], [-4 / 7, 1], False),
    (15, [[0.0, 0.0]], [[0, 0]], False),
    # A scale each, m = 1, 0.26 and 0.
    (
      *(2, [[0.5, -1], [0.26, 0], [0, 0]]),
      *([[2 / 3, -1], [0.26, 0], [0, 0]], True),
    ),
  ],
)
def test_quantized_by_hand(num_bits, values, expected, is_stacked):
  found = _quantize(values, num_bits, is_stacked=is_stacked)
  np.testing.assert_allclose(found, expected, rtol=1e-7)


@hypothesis.given(_ANY_VECTOR, st.sampled_from([1, 2, 8, 15, 23]))
@hypothesis.settings(deadline=None, max_examples=100)
def test_no_entry_is_off_by_more_than_half_a_step(values, num_bits):
  found = _quantize(values, num_bits)
  m = float(np.max(np.abs(values), initial=0.0))
  # Half a step and, beyond the exact formula, float32's rounding. Below the
  # smallest normal number values may become 0.
  bound = m / (2 * (2**num_bits - 1)) + m * 2.0**-22 + 1.2e-38
  errors = np.abs(found.astype(np.float64) - values)
  assert np.all(errors <= bound)


def _psd(seed, size, num_rows, scale=1.0):
  rows = np.random.default_rng(seed).normal(size=[num_rows, size])
  return (scale * rows.T @ rows / num_rows).astype(np.float32)


def _by_the_book(matrix, rank):
  """U_r, S_r and V_r quantized apart, multiplied out, projected; float64."""

  def quantized(v):
    m = np.abs(v).max()
    return m * np.round(255 * v / m) / 255

  u, s, vt = np.linalg.svd(matrix.astype(np.float64))
  u, s, vt = map(quantized, (u[:, :rank], s[:rank], vt[:rank]))
  product = u @ np.diag(s) @ vt
  values, vectors = np.linalg.eigh((product + product.T) / 2)
  return vectors @ np.diag(np.maximum(values, 0)) @ vectors.T


@pytest.mark.parametrize('rank', [1, 4, 9, 50])
def test_factors_by_the_singular_value_decomposition(rank):
  matrix = _psd(3, size=9, num_rows=14)
  # A step of the quantizer is 4e-3 of the largest entry.
  np.testing.assert_allclose(
    compress_factor(matrix, rank), _by_the_book(matrix, rank), atol=1e-4
  )


@hypothesis.given(
  st.integers(0, 10_000),
  st.integers(1, 7),
  st.integers(1, 7),
  st.integers(1, 9),
  st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e12, 1e30]),
)
@hypothesis.settings(deadline=None, max_examples=50)
def test_factors_stay_positive_semidefinite(seed, size, num_rows, rank, scale):
  found = compress_factor(_psd(seed, size, num_rows, scale), rank).numpy()
  np.testing.assert_array_equal(found, found.T)
  values = np.linalg.eigvalsh(found.astype(np.float64))
  assert values[0] >= -1e-6 * values[-1]
  assert np.count_nonzero(values > 1e-5 * values[-1]) <= rank


def test_odd_matrices():
  # A negative eigenvalue counts as 0; what is not finite shows.
  matrix = np.diag(np.float32([2.0, -1.0, 2.0]))
  found = compress_factor(matrix, 3)
  np.testing.assert_allclose(found, np.diag([2, 0, 2]), atol=1e-2)
  matrix[1, 2] = np.inf
  assert np.all(np.isnan(compress_factor(matrix, 2)))


@pytest.mark.parametrize(
  ('shape', 'summary', 'rank', 'plain', 'compressed'),
  [
    # FedFisher, appendix: A and G of each layer, (25^2 + 6^2) + (150^2 + 16^2)
    # + (256^2 + 120^2) + (120^2 + 84^2) + (84^2 + 10^2) = 131,965.
    (_LENET, 'kfac', 50, 1 + 131_965 / 44_190, 1.0340),
    (_CNN, 'kfac', 243, 1 + 3_767_901 / 939_616, 1.0247),
    # Dense layers only, inputs 256, 120 and 84: r1 = 2 * 460 + 3 = 923,
    # r = int(88380 / 923) = 95; capped at 84 for the last. 9 bits for each of
    # 2 (256 * 95 + 120 * 95 + 84 * 84) + 95 + 95 + 84 entries, 9 scales.
    (_LENET, 'gram', 95, 1 + 86_992 / 44_190, 0.5 + 772_722 / (32 * 44_190)),
    # 64 bits for each of 5 layers.
    (_LENET, 'diagonal', None, 2, 1 + 5 * 64 / (32 * 44_190)),
    (_LENET, 'none', None, 1, 0.5),
    # A few scalars are not counted.
    (_LENET, 'class_counts', None, 1, 0.5),
  ],
)
def test_models_up(shape, summary, rank, plain, compressed):
  kind = UploadKind(summary)
  assert factor_rank(shape, kind) == rank
  assert uploaded_models(shape, kind) == pytest.approx(plain, rel=1e-12)
  found = uploaded_models(shape, kind._replace(compression='paper'))
  assert found == pytest.approx(compressed, abs=5e-5)
