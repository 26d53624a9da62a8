"""The generator's shapes, scale and arithmetic."""

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.methods.one_shot import image_generator

_SEED = tf.constant([3, 4])


def _noise(batch):
  return tf.random.stateless_normal(
    [batch, image_generator.NOISE_WIDTH], [5, 6]
  )


@pytest.mark.parametrize('shape', [(16, 16, 1), (17, 22, 3), (28, 28, 1)])
def test_images_of_any_shape(shape):
  weights = image_generator.initial_weights(shape, _SEED)
  shapes = image_generator.generator_shapes(shape).values()
  assert [tuple(w.shape) for w in weights] == list(shapes)
  images = image_generator.generate(weights, _noise(3), shape).numpy()
  assert images.shape == (3, *shape)
  assert images.dtype == np.float32
  assert images.min() >= 0
  assert images.max() <= 1
  # The last rows and columns, too, differ from image to image.
  assert np.all(images[0, -1] != images[1, -1])
  assert np.all(images[0, :, -1] != images[1, :, -1])


def test_initial_weights_are_drawn_from_the_seed():
  first, same, other = (
    image_generator.initial_weights((16, 16, 1), tf.constant(seed))
    for seed in ([3, 4], [3, 4], [3, 5])
  )
  names = image_generator.generator_shapes((16, 16, 1))
  for name, one, two, three in zip(names, first, same, other, strict=True):
    np.testing.assert_array_equal(one, two)
    is_drawn = name.endswith('kernel')
    assert np.any(one != three) == is_drawn
    if is_drawn and one.shape.num_elements() > 1000:
      assert np.std(one) == pytest.approx(0.02, rel=0.05)
  # No two kernels begin with the same numbers.
  assert len({float(w[0, 0, 0, 0]) for w in first if w.shape.rank == 4}) == 3


def test_enlarging_is_repeating_and_convolving():
  # Each row and column twice, then a common 3x3 convolution.
  inputs = tf.random.stateless_normal([2, 4, 7, 3], [1, 2])
  kernel = tf.random.stateless_normal([3, 3, 3, 5], [3, 4])
  repeated = tf.repeat(tf.repeat(inputs, 2, axis=1), 2, axis=2)
  expected = tf.nn.conv2d(repeated, kernel, strides=1, padding='SAME')
  found = image_generator.enlarge_and_convolve(inputs, kernel)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_every_weight_has_a_gradient():
  weights = image_generator.initial_weights((16, 18, 2), _SEED)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    images = image_generator.generate(weights, _noise(4), (16, 18, 2))
    # Images that differ, or normalization takes most of it away.
    loss = tf.reduce_mean(
      images**2 * tf.constant([1.0, 2, 3, 4])[:, None, None, None]
    )
  gradients = tape.gradient(loss, weights)
  for name, gradient in zip(
    image_generator.generator_shapes((16, 18, 2)), gradients, strict=True
  ):
    # A shift before normalization over all positions would change nothing.
    assert np.abs(gradient).max() > 1e-7, name
