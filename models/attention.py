"""Causal self-attention that keeps no attention probabilities.

softmax(q k^T / sqrt(d)) v, block by block of queries. What the backward pass
needs of the probabilities (a [length, length] matrix a head) is computed again
from q and k; keys after the last query of a block are never touched.
"""

import tensorflow as tf

from models import transformer_config


def causal_attention(
  query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
) -> tf.Tensor:
  """Returns attention of every position over itself and those before it.

  All are of one float dtype, [batch, heads, length, head width], with a static
  length. The softmax is computed in float32.
  """
  blocks = transformer_config.query_blocks(query.shape[2])

  @tf.custom_gradient
  def attend(query, key, value):
    def of_block(start, end):
      weights = _probabilities(query, key, start, end)
      return tf.matmul(tf.cast(weights, value.dtype), value[:, :, :end])

    def gradient(output_gradient):
      return _gradients(query, key, value, output_gradient, blocks)

    return tf.concat([of_block(*block) for block in blocks], axis=2), gradient

  return attend(query, key, value)


def _probabilities(query, key, start, end):
  """Returns float32 [batch, heads, end - start, end]."""
  scores = tf.matmul(query[:, :, start:end], key[:, :, :end], transpose_b=True)
  scores = tf.cast(scores, tf.float32) * _scale(query)
  # Row i of the block is position start + i.
  visible = tf.linalg.band_part(tf.ones([end - start, end], tf.bool), -1, start)
  return tf.nn.softmax(tf.where(visible, scores, scores.dtype.min))


def _gradients(query, key, value, output_gradient, blocks):
  query_gradients, length = [], query.shape[2]
  key_gradient, value_gradient = tf.zeros_like(key), tf.zeros_like(value)
  for start, end in blocks:
    upstream = output_gradient[:, :, start:end]
    weights = _probabilities(query, key, start, end)
    weights_gradient = tf.cast(
      tf.matmul(upstream, value[:, :, :end], transpose_b=True), tf.float32
    )
    # d softmax: p * (g - sum(p g)); masked entries have p = 0.
    centred = weights_gradient - tf.reduce_sum(
      weights * weights_gradient, axis=-1, keepdims=True
    )
    scores_gradient = tf.cast(weights * centred * _scale(query), query.dtype)
    query_gradients.append(tf.matmul(scores_gradient, key[:, :, :end]))
    padding = [[0, 0], [0, 0], [0, length - end], [0, 0]]
    queries, weights = query[:, :, start:end], tf.cast(weights, value.dtype)
    of_keys = tf.matmul(scores_gradient, queries, transpose_a=True)
    of_values = tf.matmul(weights, upstream, transpose_a=True)
    key_gradient += tf.pad(of_keys, padding)
    value_gradient += tf.pad(of_values, padding)
  return tf.concat(query_gradients, axis=2), key_gradient, value_gradient


def _scale(query):
  return float(query.shape[3]) ** -0.5
