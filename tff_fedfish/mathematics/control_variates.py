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
  c       server_control_variate       sum_i w_i c_i / W, over all K clients
  w_i     -                            weight of client i in its last round, 0
                                       before its first
  W       total_weight                 of all K clients
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


def total_weight(
  seen_weight: tf.Tensor, num_seen: tf.Tensor, num_clients: int | None
) -> tf.Tensor:
  """Returns W: the weight of the clients seen so far, scaled to all K.

  Exact from the round on in which the last client has taken part for the first
  time, and at any time if all weigh the same.

  Args:
    seen_weight: Sum of the w_i.
    num_seen: Number of the clients with w_i > 0.
    num_clients: K. None: there are no others.
  """
  if num_clients is None:
    return seen_weight
  return seen_weight * tf.math.divide_no_nan(float(num_clients), num_seen)


def next_server_control_variate(
  server_control_variate: Structure,
  weighted_change_sum: Structure,
  weight_before: tf.Tensor,
  weight_after: tf.Tensor,
) -> Structure:
  """Returns the mean of what the clients keep after a round.

    c' = (W c + sum_i (w_i' c_i' - w_i c_i)) / W'

  the sum over the clients of the round. With equal weights that is the paper's
  c + S / K mean_i (c_i' - c_i), S the clients of the round. Dividing by the
  weights of the round instead would make c depend on who came when.

  Args:
    server_control_variate: c.
    weighted_change_sum: The sum.
    weight_before: W.
    weight_after: W' after the round. 0: c stays.
  """

  def next_one(c, change):
    before, after = (
      tf.cast(weight, c.dtype) for weight in (weight_before, weight_after)
    )
    return tf.where(
      after > 0, tf.math.divide_no_nan(before * c + change, after), c
    )

  return tf.nest.map_structure(
    next_one, server_control_variate, weighted_change_sum
  )
