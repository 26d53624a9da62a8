"""Fisher diagonals from gradients, and of the model's own distribution."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from models.token_loss import draw_labels
from tff_fedfish import fisher_diagonal


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

  def test_unknown_normalization(self):
    sums = fisher_diagonal.zero_sums((tf.zeros([1]),))
    with pytest.raises(ValueError, match="'tensor_mean', found 'mean'"):
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'sum', 'mean')

  def test_unknown_reduction(self):
    sums = fisher_diagonal.zero_sums((tf.zeros([1]),))
    with pytest.raises(ValueError, match="'sum' or 'mean', found 'max'"):
      fisher_diagonal.fisher_diagonal_from_sums(sums, 'max')


# A softmax over 3 classes of x W. Rows and what becomes of them, in powers of
# two: row (1, 0) is (1, 2, 1) / 4; (2, -1) is (1, 1, 2) / 4; (0, 1) is
# (1, 4, 1/2) / 5.5.
_LN2 = np.log(2.0)
_KERNEL = np.array([[0, _LN2, 0], [0, 2 * _LN2, -_LN2]], np.float32)
_ROWS = np.array([[1, 0], [2, -1], [0, 1]], np.float32)
_PROBABILITIES = np.array(
  [[1 / 4, 1 / 2, 1 / 4], [1 / 4, 1 / 4, 1 / 2], [2 / 11, 8 / 11, 1 / 11]]
)
# d log p(y | x) / d W[d, c] = x[d] (1[y = c] - p[c]), whose square expects
# x[d]^2 p[c] (1 - p[c]). p (1 - p) of the rows:
#   (3, 4, 3) / 16; (3, 3, 4) / 16; (18, 24, 10) / 121
_EXACT = np.array(
  [
    # 1 * the first + 4 * the second
    [15 / 16, 1, 19 / 16],
    # 1 * the second + 1 * the third
    [3 / 16 + 18 / 121, 3 / 16 + 24 / 121, 4 / 16 + 10 / 121],
  ]
)


def _softmax_loss(weights, x, unused_y, seed):
  logits = tf.matmul(x['features'], weights[0][0])
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
    draw_labels(logits, seed), logits
  )
  return tf.reduce_sum(losses), tf.shape(losses, tf.int64)[0]


def _drawn_sums(num_repeats, batch_size, first_seed=0, labels=0, rows=_ROWS):
  """Sums over the rows, time and again with other seeds."""
  num_rows = num_repeats * len(rows)
  seeds = np.stack([np.arange(num_rows), np.full(num_rows, 7)], axis=1)
  data = collections.OrderedDict(
    x=collections.OrderedDict(
      features=np.tile(rows, [num_repeats, 1]),
      noise_seed=(seeds + [first_seed, 0]).astype(np.int32),
    ),
    y=np.full(num_rows, labels, np.int32),
  )

  @tf.function
  def run(dataset):
    return fisher_diagonal.true_fisher_sums(
      _softmax_loss, (tf.constant(_KERNEL),), (), dataset
    )

  return run(tf.data.Dataset.from_tensor_slices(data).batch(batch_size))


def _moments_of_a_batch(rows):
  """Mean and variance of a batch's estimate, over all labels it may draw."""
  mean, mean_square = np.zeros([2, 3]), np.zeros([2, 3])
  for labels in itertools.product(range(3), repeat=len(rows)):
    gradient, probability = np.zeros([2, 3]), 1.0
    for row, label in zip(rows, labels, strict=True):
      expected = _PROBABILITIES[row]
      gradient += np.outer(_ROWS[row], np.eye(3)[label] - expected)
      probability *= expected[label]
    mean += probability * gradient**2
    mean_square += probability * gradient**4
  return mean, mean_square - mean**2


class TestDrawnLabels:
  @pytest.mark.parametrize('batches', [[[0], [1], [2]], [[0, 1, 2]]])
  def test_squares_expect_the_exact_fisher(self, batches):
    # Whether rows are squared one by one or their sum is: products between
    # rows average out.
    moments = [_moments_of_a_batch(rows) for rows in batches]
    np.testing.assert_allclose(sum(mean for mean, _ in moments), _EXACT)
    num_repeats = 1500
    sums = _drawn_sums(num_repeats, len(batches[0]))
    found = sums.squared_gradients[0].numpy() / num_repeats
    error = np.sqrt(sum(variance for _, variance in moments) / num_repeats)
    # Some 5 %; a mean in place of the sum would be a ninth.
    assert np.all(error < 0.07 * _EXACT)
    assert np.all(np.abs(found - _EXACT) < 4 * error)
    # Three labels each time, which a mean divides by.
    assert sums.num_terms == 3 * num_repeats
    (mean,) = fisher_diagonal.fisher_diagonal_from_sums(sums, 'mean')
    np.testing.assert_allclose(mean, found / 3, rtol=1e-6)

  def test_draws_are_a_function_of_the_seeds_alone(self):
    def found(**options):
      return _drawn_sums(3, 1, **options).squared_gradients[0].numpy()

    np.testing.assert_array_equal(found(), found())
    # Whatever labels the data have.
    np.testing.assert_array_equal(found(), found(labels=2))
    assert np.any(found() != found(first_seed=1000))

  def test_row_by_hand(self):
    sums = _drawn_sums(1, 1, rows=_ROWS[1:2])
    label = draw_labels(tf.matmul(_ROWS[1:2], _KERNEL), [0, 7]).numpy()[0]
    # x = (2, -1): 4 and 1 times (1[y = c] - p[c])^2.
    squares = (np.eye(3)[label] - [1 / 4, 1 / 4, 1 / 2]) ** 2
    np.testing.assert_allclose(
      sums.squared_gradients[0], [4 * squares, squares], rtol=1e-5
    )

  def test_no_data_is_no_mass(self):
    sums = _drawn_sums(0, 1)
    np.testing.assert_array_equal(sums.squared_gradients[0], np.zeros([2, 3]))
    assert sums.num_terms == 0
