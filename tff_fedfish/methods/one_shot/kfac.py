"""Kronecker factors and exact diagonals of the Fisher matrix of one layer.

Martens and Grosse (2015), "Optimizing neural networks with Kronecker-factored
approximate curvature", and Grosse and Martens (2016) for convolutions, as
Jhunjhunwala et al. (2024), FedFisher, use them. A layer maps inputs to
preactivations z = V^T [a; 1] at every position of an image; V is its kernel in
the layout [in, out], with the bias as its last row.

  letter   name         what
  a        inputs       of the layer, 1 appended if it has a bias
  g        gradients    of log p(y | x) with respect to z, times sqrt(p(y | x))
                        where the sum over y is exact
  T        positions    of one row
  A        .            sum over rows, sum over positions: a a^T
  G        .            sum over rows, mean over positions: g g^T

The layer's Fisher is A (x) G, which multiplies V to A V G; it is exact with one
row and one position. Divided by the number of rows both are means over rows.
"""

import tensorflow as tf


def patches(
  images: tf.Tensor, *, height: int, width: int, stride: int, padding: str
) -> tf.Tensor:
  """Returns a convolution's inputs at every position of its output.

  Args:
    images: Float [rows, height, width, channels], the last three static.
    height: Of the convolution's kernel.
    width: Of the convolution's kernel.
    stride: Pixels between positions.
    padding: 'VALID' or 'SAME'.

  Returns:
    Float [rows, positions, height * width * channels], the last axis ordered by
    (height, width, channel) as the rows of a kernel in the layout HWIO.
  """
  found = tf.image.extract_patches(
    images,
    sizes=[1, height, width, 1],
    strides=[1, stride, stride, 1],
    rates=[1, 1, 1, 1],
    padding=padding,
  )
  _, rows, columns, num_features = found.shape
  return tf.reshape(found, [-1, rows * columns, num_features])


def input_factor(inputs: tf.Tensor, *, has_bias: bool) -> tf.Tensor:
  """Returns A summed over a batch.

  Args:
    inputs: a, float32 [rows, positions, in].
    has_bias: Whether 1 is appended to the inputs.

  Returns:
    Float32 [in + has_bias, in + has_bias].
  """
  flat = _flat(_with_one(inputs, has_bias))
  return tf.matmul(flat, flat, transpose_a=True)


def gradient_factor(gradients: tf.Tensor) -> tf.Tensor:
  """Returns G summed over a batch.

  Args:
    gradients: g, float32 [rows, positions, out].

  Returns:
    Float32 [out, out].
  """
  share = tf.constant(1 / gradients.shape[1])
  flat = _flat(gradients * tf.sqrt(share))
  return tf.matmul(flat, flat, transpose_a=True)


def sum_of_products(
  left: tf.Tensor, matrix: tf.Tensor, right: tf.Tensor
) -> tf.Tensor:
  """Returns sum_i A_i V G_i over clients, a layer's Fishers times V.

  Args:
    left: A_i, float [clients, rows, rows].
    matrix: V, float [rows, columns].
    right: G_i, float [clients, columns, columns].
  """
  return tf.reduce_sum(tf.matmul(tf.matmul(left, matrix), right), axis=0)


def squared_gradients(
  inputs: tf.Tensor, gradients: tf.Tensor, *, has_bias: bool
) -> tf.Tensor:
  """Returns the exact diagonal of the Fisher, as V, summed over a batch.

  The gradient of a row with respect to V is the sum over its positions of
  a g^T, and is squared after this sum. With more than one position the
  gradients of all rows are in memory at once.

  Args:
    inputs: a, float32 [rows, positions, in].
    gradients: g, float32 [rows, positions, out].
    has_bias: Whether 1 is appended to the inputs.

  Returns:
    Float32 [in + has_bias, out].
  """
  inputs = _with_one(inputs, has_bias)
  if inputs.shape[1] == 1:
    # (a g)^2 = a^2 g^2.
    inputs, gradients = (tf.square(_flat(x)) for x in (inputs, gradients))
    return tf.matmul(inputs, gradients, transpose_a=True)
  of_rows = tf.matmul(inputs, gradients, transpose_a=True)
  return tf.reduce_sum(tf.square(of_rows), axis=0)


def squared_scale_gradients(
  inputs: tf.Tensor, gradients: tf.Tensor
) -> tf.Tensor:
  """Returns the exact diagonal of an elementwise z = a * scale + bias.

  Args:
    inputs: a, float32 [rows, positions, features].
    gradients: g, of the same shape.

  Returns:
    Float32 [2, features]: of the scale and of the bias.
  """
  of_scale = tf.reduce_sum(inputs * gradients, axis=1)
  of_bias = tf.reduce_sum(gradients, axis=1)
  squares = tf.square(tf.stack([of_scale, of_bias]))
  return tf.reduce_sum(squares, axis=1)


def _with_one(inputs, has_bias):
  if not has_bias:
    return inputs
  return tf.concat([inputs, tf.ones_like(inputs[..., :1])], axis=-1)


def _flat(values):
  # [rows, positions, features] -> [rows * positions, features]
  return tf.reshape(values, [-1, values.shape[-1]])
