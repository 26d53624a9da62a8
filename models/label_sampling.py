"""Labels that a model draws from its own softmax, a function of a seed."""

import tensorflow as tf


def draw_labels(logits: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Draws a label a row, each with its probability under the softmax.

  Args:
    logits: Float32 [targets, classes].
    seed: Int32 [2]. A row's label is a function of it, of the row's number and
      of only the row's logits.

  Returns:
    Int32 [targets], without a gradient.
  """
  drawn = tf.random.stateless_categorical(
    tf.stop_gradient(logits), 1, seed, dtype=tf.int32
  )
  # From NaN it draws one class too many, at which a loss would raise. A loss
  # that is NaN is counted instead: that of a client whose training diverged.
  return tf.minimum(drawn[:, 0], logits.shape[-1] - 1)
