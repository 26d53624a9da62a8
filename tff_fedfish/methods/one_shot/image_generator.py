"""Generator of images from noise, as pure functions of explicit weights.

The generator of Zhang et al. (2022), "DENSE: Data-free one-shot federated
learning", after DCGAN (Radford et al., 2016): a dense layer makes a small map
of channels, which is enlarged twice. Batch normalization uses the statistics
of the batch, so an image depends on the others that are made with it.

Weights are a flat tuple in the order of `generator_shapes`.
"""

from collections.abc import Sequence

import tensorflow as tf

NOISE_WIDTH = 256
"""Numbers that an image is made from."""

_CHANNELS = (128, 128, 64)
_INITIAL_DEVIATION = 0.02
_LEAK = 0.2
_VARIANCE_FLOOR = 1e-5


def generator_shapes(
  image_shape: tuple[int, int, int],
) -> dict[str, tuple[int, ...]]:
  """Returns the name and shape of every weight, in order."""
  rows, columns = _map_sides(image_shape)
  first, second, third = _CHANNELS
  return {
    'input/kernel': (NOISE_WIDTH, rows * columns * first),
    'input/bias': (rows * columns * first,),
    'input/norm/scale': (first,),
    'input/norm/bias': (first,),
    'conv_1/kernel': (3, 3, first, second),
    'conv_1/norm/scale': (second,),
    'conv_1/norm/bias': (second,),
    'conv_2/kernel': (3, 3, second, third),
    'conv_2/norm/scale': (third,),
    'conv_2/norm/bias': (third,),
    'output/kernel': (3, 3, third, image_shape[2]),
    'output/bias': (image_shape[2],),
  }


def initial_weights(
  image_shape: tuple[int, int, int], seed: tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Draws float32 weights as a function of the seed, int32 [2].

  Kernels are normal with deviation 0.02; norms begin as the identity, biases
  at 0.
  """
  weights = []
  for index, (name, shape) in enumerate(generator_shapes(image_shape).items()):
    if name.endswith('/scale'):
      weights.append(tf.ones(shape))
    elif name.endswith('/bias'):
      weights.append(tf.zeros(shape))
    else:
      place = tf.random.experimental.stateless_fold_in(seed, index)
      weights.append(
        tf.random.stateless_normal(shape, place, stddev=_INITIAL_DEVIATION)
      )
  return tuple(weights)


def generate(
  weights: Sequence[tf.Tensor],
  noise: tf.Tensor,
  image_shape: tuple[int, int, int],
) -> tf.Tensor:
  """Makes images.

  Args:
    weights: Float32, in the order of `generator_shapes`.
    noise: Float32 [batch, NOISE_WIDTH], standard normal; at least two rows.
    image_shape: Height, width and channels.

  Returns:
    Float32 [batch, height, width, channels], in [0, 1].
  """
  kernel, bias, *norm, conv_1, scale_1, bias_1, conv_2, scale_2, bias_2 = (
    weights[:-2]
  )
  height, width, _ = image_shape
  outputs = tf.matmul(noise, kernel) + bias
  # Sides rounded up: what they are too large by is cropped at the end.
  outputs = tf.reshape(outputs, [-1, *_map_sides(image_shape), _CHANNELS[0]])
  outputs = _normalize(outputs, *norm)
  for kernel, *norm in (conv_1, scale_1, bias_1), (conv_2, scale_2, bias_2):
    outputs = enlarge_and_convolve(outputs, kernel)
    outputs = tf.nn.leaky_relu(_normalize(outputs, *norm), _LEAK)
  kernel, bias = weights[-2:]
  outputs = tf.nn.conv2d(outputs, kernel, strides=1, padding='SAME') + bias
  return tf.sigmoid(outputs[:, :height, :width])


def enlarge_and_convolve(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
  """Repeats every row and column, and convolves with zeros around.

  Both are done at once by a transposed convolution with a 4x4 kernel, in 4/9
  of the products: an input counts wherever one of its four copies does.

  Args:
    inputs: [batch, rows, columns, channels_in].
    kernel: [3, 3, channels_in, channels_out].

  Returns:
    [batch, 2 * rows, 2 * columns, channels_out].
  """
  batch, (_, rows, columns, _) = tf.shape(inputs)[0], inputs.shape
  # Transposed convolutions take them mirrored, [4, 4, out, in].
  mirrored = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
  summed = tf.add_n(
    tf.pad(mirrored, [[down, 1 - down], [right, 1 - right], [0, 0], [0, 0]])
    for down in (0, 1)
    for right in (0, 1)
  )
  shape = [batch, 2 * rows, 2 * columns, kernel.shape[3]]
  return tf.nn.conv2d_transpose(inputs, summed, shape, strides=2)


def _map_sides(image_shape):
  """Returns rows and columns of the map that is enlarged to an image."""
  height, width, _ = image_shape
  return -(-height // 4), -(-width // 4)


def _normalize(inputs, scale, bias):
  """Batch normalization over the batch and all positions."""
  # In steps whose gradients are sums of two terms. `tf.nn.moments` makes one of
  # three, which TensorFlow adds in an order that depends on its threads.
  centered = inputs - tf.reduce_mean(inputs, axis=[0, 1, 2])
  variance = tf.reduce_mean(tf.square(centered), axis=[0, 1, 2])
  return centered * (tf.math.rsqrt(variance + _VARIANCE_FLOOR) * scale) + bias
