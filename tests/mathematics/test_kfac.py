"""Kronecker factors by hand, against loops, and against the whole Fisher."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.one_shot import kfac


def _product(of_inputs, matrix, of_gradients):
  """Returns A V G of one client."""
  left, right = (
    tf.convert_to_tensor(f)[tf.newaxis] for f in (of_inputs, of_gradients)
  )
  return kfac.sum_of_products(left, matrix, right)


def _random(*shape, seed=0):
  values = np.random.RandomState(seed).normal(size=shape)
  return tf.constant(values, tf.float32)


class TestVectorV12:
  # Rows (1, 2) and (0, 1), logits x W with W = ((1, 0), (0, 0)): p is
  # (e, 1) / (e + 1) = (0.7310586, 0.2689414) and (1, 1) / 2. p1 p2 is
  # 0.1966119332 and 0.25, so G = 0.2233059666 ((1, -1), (-1, 1)).
  inputs = tf.constant([[[1.0, 2.0]], [[0.0, 1.0]]])
  p = np.array([[np.e / (np.e + 1), 1 / (np.e + 1)], [0.5, 0.5]])

  def gradients(self):
    """Returns sqrt(p_y) (onehot(y) - p) of both rows, for both labels."""
    of_labels = [
      np.sqrt(self.p[:, [label]]) * (np.eye(2)[label] - self.p)
      for label in range(2)
    ]
    return [tf.constant(g[:, np.newaxis], tf.float32) for g in of_labels]

  def factors(self):
    of_inputs = kfac.input_factor(self.inputs, has_bias=True) / 2
    of_gradients = [kfac.gradient_factor(g) / 2 for g in self.gradients()]
    return of_inputs, sum(of_gradients)

  def test_factors(self):
    of_inputs, of_gradients = self.factors()
    # Means of 1, 0; 2, 0; 1, 0; 4, 1; 2, 1; 1, 1.
    np.testing.assert_allclose(
      of_inputs, [[0.5, 1, 0.5], [1, 2.5, 1.5], [0.5, 1.5, 1]]
    )
    np.testing.assert_allclose(
      of_gradients, 0.2233059666 * np.array([[1, -1], [-1, 1]]), rtol=1e-6
    )

  def test_product(self):
    of_inputs, of_gradients = self.factors()
    matrix = np.array([[1, -1], [2, 0], [0.5, 0.5]], np.float32)
    found = _product(of_inputs, tf.constant(matrix), of_gradients)
    # A V = ((2.75, -0.25), (6.75, -0.25), (4, 0)); differences of its columns
    # 3, 7 and 4, times 0.2233059666.
    expected = [0.6699178999, 1.5631417663, 0.8932238665]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], -found[:, 0])
    whole = np.kron(of_inputs, of_gradients) @ matrix.ravel()
    np.testing.assert_allclose(found, whole.reshape(3, 2), rtol=1e-5)

  def test_exact_diagonal_differs_from_that_of_the_factors(self):
    exact = sum(
      kfac.squared_gradients(self.inputs, g, has_bias=True) / 2
      for g in self.gradients()
    )
    expected = [[0.0983059666] * 2, [0.5182238665] * 2, [0.2233059666] * 2]
    np.testing.assert_allclose(exact, expected, rtol=1e-6)
    of_inputs, of_gradients = self.factors()
    diagonal = np.outer(np.diag(of_inputs), np.diag(of_gradients))
    expected = [[0.1116529833] * 2, [0.5582649165] * 2, [0.2233059666] * 2]
    np.testing.assert_allclose(diagonal, expected, rtol=1e-6)


_WINDOWS = [
  # Kernel's height and width, stride, padding, image's height and width.
  (3, 2, 1, 'VALID', 5, 4),
  (3, 3, 2, 'SAME', 4, 6),
  (3, 3, 2, 'SAME', 5, 3),
  (1, 1, 2, 'SAME', 4, 3),
]


class TestConvolution:
  @pytest.mark.parametrize(
    ('height', 'width', 'stride', 'padding', 'rows', 'columns'), _WINDOWS
  )
  def test_patches_times_the_kernel_are_its_output(
    self, height, width, stride, padding, rows, columns
  ):
    images = _random(2, rows, columns, 3)
    kernel = _random(height, width, 3, 5, seed=1)
    expected = tf.nn.conv2d(images, kernel, stride, padding)
    patches = kfac.patches(
      images, height=height, width=width, stride=stride, padding=padding
    )
    found = tf.matmul(patches, tf.reshape(kernel, [-1, 5]))
    assert found.shape == (2, expected.shape[1] * expected.shape[2], 5)
    np.testing.assert_allclose(
      found, tf.reshape(expected, found.shape), rtol=1e-4, atol=1e-5
    )

  def test_patches_are_ordered_by_height_width_channel(self):
    images = tf.reshape(tf.range(1.0, 13), [1, 2, 3, 2])
    found = kfac.patches(images, height=2, width=2, stride=1, padding='VALID')
    # Rows of the image: (1 2) (3 4) (5 6) and (7 8) (9 10) (11 12).
    np.testing.assert_array_equal(
      found, [[[1, 2, 3, 4, 7, 8, 9, 10], [3, 4, 5, 6, 9, 10, 11, 12]]]
    )

  def test_vector_v12b_reshaped_product_is_that_of_the_kronecker_product(self):
    patches = kfac.patches(
      _random(2, 4, 3, 2), height=2, width=2, stride=1, padding='VALID'
    )
    of_inputs = kfac.input_factor(patches, has_bias=False)
    of_gradients = kfac.gradient_factor(_random(2, 6, 3, seed=1))
    kernel = _random(2, 2, 2, 3, seed=2)
    found = _product(
      of_inputs, tf.reshape(kernel, [8, 3]), of_gradients
    ).numpy()
    expected = np.kron(of_inputs, of_gradients) @ kernel.numpy().ravel()
    np.testing.assert_allclose(
      found.reshape(2, 2, 2, 3), expected.reshape(2, 2, 2, 3), rtol=1e-4
    )

  def test_vector_v12b_one_row_and_position_is_the_exact_outer_product(self):
    images, kernel = _random(1, 3, 2, 2), _random(3, 2, 2, 4, seed=1)
    gradients = _random(1, 1, 1, 4, seed=2)
    with tf.GradientTape() as tape:
      tape.watch(kernel)
      outputs = tf.nn.conv2d(images, kernel, 1, 'VALID')
      loss = tf.reduce_sum(outputs * gradients)
    gradient = tape.gradient(loss, kernel).numpy().ravel()
    patches = kfac.patches(images, height=3, width=2, stride=1, padding='VALID')
    found = np.kron(
      kfac.input_factor(patches, has_bias=False),
      kfac.gradient_factor(tf.reshape(gradients, [1, 1, 4])),
    )
    np.testing.assert_allclose(
      found, np.outer(gradient, gradient), rtol=1e-4, atol=1e-6
    )


def test_gradients_are_averaged_over_positions_by_hand():
  gradients = tf.constant([[[1.0, 2], [3, -1]], [[0, 2], [4, 0]]])
  # ((1, 2)(1, 2)^T + (3, -1)(3, -1)^T + (0, 2)(0, 2)^T + (4, 0)(4, 0)^T) / 2.
  np.testing.assert_allclose(
    kfac.gradient_factor(gradients), [[13, -0.5], [-0.5, 4.5]], rtol=1e-6
  )


def test_sum_of_products_by_a_loop():
  left, right = _random(3, 2, 2), _random(3, 4, 4, seed=1)
  matrix = _random(2, 4, seed=2).numpy()
  wanted = sum(
    a.numpy() @ matrix @ g.numpy() for a, g in zip(left, right, strict=True)
  )
  found = kfac.sum_of_products(left, matrix, right)
  np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('num_positions', [1, 3])
@pytest.mark.parametrize('has_bias', [False, True])
def test_squared_gradients_of_a_matrix_are_those_of_a_loop(
  num_positions, has_bias
):
  inputs, gradients = (
    _random(4, num_positions, width, seed=width) for width in (2, 5)
  )
  expected = np.zeros([2 + has_bias, 5])
  for row in range(4):
    gradient = np.zeros([2 + has_bias, 5])
    for position in range(num_positions):
      a = list(inputs[row, position].numpy()) + has_bias * [1.0]
      gradient += np.outer(a, gradients[row, position])
    expected += gradient**2
  found = kfac.squared_gradients(inputs, gradients, has_bias=has_bias)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_squared_gradients_of_a_scale_by_hand():
  inputs = tf.constant([[[1.0, 2], [3, -1]], [[2, 0], [1, 1]]])
  gradients = tf.constant([[[1.0, 1], [-1, 2]], [[0.5, 3], [0, -1]]])
  # Of the scale 1 - 3 = -2 and 2 - 2 = 0, then 1 and -1; of the bias 0 and 3,
  # then 0.5 and 2.
  np.testing.assert_array_equal(
    kfac.squared_scale_gradients(inputs, gradients),
    [[4 + 1, 0 + 1], [0 + 0.25, 9 + 4]],
  )
