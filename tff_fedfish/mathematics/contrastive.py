"""Contrastive loss between a model and its own past.

Li, He and Song (2021), "Model-contrastive federated learning", equation 3.

  letter   name                what
  z        features            representation under the weights being trained
  z_glob   global_features     under the server's weights
  z_prev   previous_features   under the client's last trained weights
  tau      temperature         > 0
"""

import tensorflow as tf

_MIN_SQUARED_NORM = 1e-16


def contrastive_loss(
  features: tf.Tensor,
  global_features: tf.Tensor,
  previous_features: tf.Tensor,
  *,
  temperature: float,
) -> tf.Tensor:
  """Returns -log(e^p / (e^p + e^n)), p = cos(z, z_glob) / tau, n by z_prev.

  Args:
    features: z, float [num_targets, width].
    global_features: z_glob, of the same shape.
    previous_features: z_prev, of the same shape.
    temperature: tau.

  Returns:
    Float [num_targets], in nats; log 2 where z_glob = z_prev. A vector shorter
    than 1e-8 counts as one of that norm.
  """
  z, z_glob, z_prev = (
    tf.math.l2_normalize(vectors, axis=-1, epsilon=_MIN_SQUARED_NORM)
    for vectors in (features, global_features, previous_features)
  )
  positive = tf.reduce_sum(z * z_glob, axis=-1) / temperature
  negative = tf.reduce_sum(z * z_prev, axis=-1) / temperature
  return tf.math.softplus(negative - positive)
