"""Multinomial logistic regression on pixels, as a pure function of weights.

logits = x W + b, with x the pixels of an image: the convex model of the EMNIST
experiments of Karimireddy et al. (2020), SCAFFOLD, section 7.

Weights are a flat tuple in the order of `image_model_config.linear_shapes`.
"""

from collections.abc import Sequence

import tensorflow as tf

from models.layers import Tap, tapped


def logits(
  weights: Sequence[tf.Tensor],
  images: tf.Tensor,
  *,
  dropout_seed: tf.Tensor | None = None,
  tap: Tap | None = None,
) -> tf.Tensor:
  """Returns the logits of a batch.

  Args:
    weights: Float32, in the order of `linear_shapes`.
    images: Float32 [batch, height, width, channels], in [0, 1].
    dropout_seed: Not used, as there is no dropout.
    tap: See `models.layers`; None: there is none.

  Returns:
    Float32 [batch, num_classes].
  """
  del dropout_seed
  kernel, bias = weights
  # [batch, height, width, channels] -> [batch, pixels]
  pixels = tf.reshape(images, [-1, kernel.shape[0]])
  return tapped(tap, 'head', pixels, tf.matmul(pixels, kernel) + bias)
