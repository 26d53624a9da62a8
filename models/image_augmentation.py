"""Random distortions of training images, as functions of a seed."""

import tensorflow as tf


def random_crop_and_flip(
  images: tf.Tensor, seed: tf.Tensor, *, padding: int = 2
) -> tf.Tensor:
  """Shifts every image by some pixels, and mirrors about half of them.

  An image is padded with zeros on all sides (32 x 32 pixels to 36 x 36, as
  Dhawan et al. (2024), FedFish, do with CIFAR-100), a window of the old size
  is cut out at a uniformly drawn place, and with probability 1/2 its columns
  are reversed. Every image of the batch is drawn for on its own.

  Args:
    images: [batch, height, width, channels] of any type, the last three
      static; not normalized, so that 0 is black.
    seed: Int32 [2], another one at every step.
    padding: Pixels added on each side, >= 0.

  Returns:
    Type and shape of `images`.
  """
  batch = tf.shape(images)[0]
  height, width = images.shape[1:3]
  place_seed, flip_seed = tf.unstack(
    tf.random.experimental.stateless_split(seed, 2)
  )
  # [batch, 2]: the row and the column at which a window begins.
  places = tf.random.stateless_uniform(
    [batch, 2], place_seed, minval=0, maxval=2 * padding + 1, dtype=tf.int32
  )
  flips = tf.random.stateless_uniform([batch, 1], flip_seed) < 0.5
  rows = places[:, :1] + tf.range(height)
  columns = places[:, 1:] + tf.where(
    flips, tf.range(width - 1, -1, -1), tf.range(width)
  )
  margin = [padding, padding]
  padded = tf.pad(images, [[0, 0], margin, margin, [0, 0]])
  cropped = tf.gather(padded, rows, axis=1, batch_dims=1)
  cropped = tf.gather(cropped, columns, axis=2, batch_dims=1)
  return tf.ensure_shape(cropped, images.shape)
