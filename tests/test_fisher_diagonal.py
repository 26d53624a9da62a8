"""Fisher diagonals from gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.fed_fish import fisher_diagonal


class TestFisherDiagonal:
  def test_sum_and_mean(self):
    sums = fisher_diagonal.zero_sums((tf.zeros([2]),))
    sums = fisher_diagonal.add_batch(sums, (tf.constant([1.0, -2.0]),))
    sums = fisher_diagonal.add_batch(sums, (tf.constant([3.0, 0.0]),))
    # 1 + 9 = 10, 4 + 0 = 4
    np.testing.assert_array_equal(
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'sum')[0], [10, 4]
    )
    np.testing.assert_array_equal(
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'mean')[0], [5, 2]
    )

  def test_mean_over_no_batches_is_zero(self):
    sums = fisher_diagonal.zero_sums((tf.zeros([2]),))
    np.testing.assert_array_equal(
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'mean')[0], [0, 0]
    )

  def test_bfloat16_gradients_are_squared_in_float32(self):
    sums = fisher_diagonal.add_batch(
      fisher_diagonal.zero_sums((tf.zeros([1]),)),
      (tf.constant([1.0078125], tf.bfloat16),),
    )
    # 1.0078125^2 = 1.01568603515625, which bfloat16 would round to 1.015625.
    assert sums.squared_gradients[0].numpy()[0] == np.float32(1.01568603515625)

  @pytest.mark.parametrize('reduction', fisher_diagonal.REDUCTIONS)
  @pytest.mark.parametrize('scale', [1.0, 1e-6, 1e3])
  def test_normalization_takes_the_scale_of_each_tensor(self, scale, reduction):
    gradients = (
      tf.constant([1.0, -3.0]) * scale,
      tf.constant([[2.0]]) * scale,
      tf.zeros([3]),
    )
    sums = fisher_diagonal.zero_sums(gradients)
    for _ in range(2):
      sums = fisher_diagonal.add_batch(sums, gradients)
    found = fisher_diagonal.fisher_diagonal_from_sums(
      sums, reduction, 'tensor_mean'
    )
    # (1, 9) / 5 and 4 / 4; a tensor without mass still has none.
    np.testing.assert_allclose(found[0], [0.2, 1.8], rtol=1e-6)
    np.testing.assert_allclose(found[1], [[1.0]], rtol=1e-6)
    np.testing.assert_array_equal(found[2], [0, 0, 0])

  def test_layers_of_a_stacked_tensor_are_normalized_apart(self):
    sums = fisher_diagonal.FisherSums(
      (tf.constant([[1, 1], [1e-12, 1e-12]]), tf.constant([[1.0, 3.0]])),
      tf.constant(1, tf.int64),
    )
    stacked, other = fisher_diagonal.fisher_diagonal_from_sums(
      sums, 'sum', 'tensor_mean', is_stacked=(True, False)
    )
    np.testing.assert_allclose(stacked, [[1, 1], [1, 1]], rtol=1e-6)
    np.testing.assert_allclose(other, [[0.5, 1.5]], rtol=1e-6)

  def test_unknown_normalization(self):
    sums = fisher_diagonal.zero_sums((tf.zeros([1]),))
    with pytest.raises(ValueError, match="'tensor_mean', found 'mean'"):
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'sum', 'mean')

  def test_unknown_reduction(self):
    sums = fisher_diagonal.zero_sums((tf.zeros([1]),))
    with pytest.raises(ValueError, match="'sum' or 'mean', found 'max'"):
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'max')
