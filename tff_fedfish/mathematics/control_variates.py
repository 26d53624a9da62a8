"""Control variates, which take the drift out of local steps.

Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for
federated learning", option II; in the form that sends one model, Yu et al.
(2022), "TCT", algorithm 2.

  letter  name                         meaning
  x       server_weights               weights at the start of local training
  y_i     local_weights                weights at its end
  M       num_steps                    local steps
  eta     learning_rate                of the clients
  c_i     client_control_variate       mean gradient of client i's last round
  c       server_control_variate       their mean over all clients
  h_i     correction                   c_i - c, which is subtracted

Structures are nests of float tensors like the trainable weights.
"""

from typing import Any

import tensorflow as tf

Structure = Any


def correction(
  client_control_variate: Structure, server_control_variate: Structure
) -> Structure:
  """Returns h_i = c_i - c."""
  return tf.nest.map_structure(
    tf.subtract, client_control_variate, server_control_variate
  )


def corrected_gradients(
  gradients: Structure, correction: Structure
) -> Structure:
  """Returns g - h_i = g - c_i + c."""
  return tf.nest.map_structure(tf.subtract, gradients, correction)


def plus_mean_step(
  correction: Structure,
  later_weights: Structure,
  local_weights: Structure,
  *,
  num_steps: tf.Tensor,
  learning_rate: tf.Tensor,
) -> Structure:
  """Returns h_i + (x - y_i) / (M eta).

  With x the weights that local training started from it is option II's new c_i.
  With x the server's next weights it is h_i of the next round, if all clients
  take part with the same M and eta and the server's weights are the mean of
  theirs.

  Args:
    correction: h_i of the local training.
    later_weights: x.
    local_weights: y_i.
    num_steps: M, a scalar of any number type. 0 leaves h_i as it is.
    learning_rate: eta > 0, a float scalar.
  """

  def plus(h, x, y):
    distance = tf.cast(num_steps, h.dtype) * tf.cast(learning_rate, h.dtype)
    return h + tf.math.divide_no_nan(x - y, distance)

  return tf.nest.map_structure(plus, correction, later_weights, local_weights)


def next_server_control_variate(
  server_control_variate: Structure,
  weighted_change_sum: Structure,
  weight_sum: tf.Tensor,
  fraction: tf.Tensor,
) -> Structure:
  """Returns c + (S / K) sum_i w_i (c_i' - c_i) / sum_i w_i.

  Args:
    server_control_variate: c.
    weighted_change_sum: The first sum, over the S clients of the round.
    weight_sum: The second sum. 0: c stays.
    fraction: S / K, K the number of all clients, in [0, 1].
  """
  return tf.nest.map_structure(
    lambda c, change: (
      c
      + tf.cast(fraction, c.dtype)
      * tf.math.divide_no_nan(change, tf.cast(weight_sum, c.dtype))
    ),
    server_control_variate,
    weighted_change_sum,
  )
