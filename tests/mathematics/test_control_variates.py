"""Control variates by hand."""

import numpy as np
import tensorflow as tf

from tff_fedfish.mathematics import control_variates


def _arrays(structure):
  return [np.asarray(tensor).tolist() for tensor in structure]


def test_correction_by_hand():
  client, server = [tf.constant([3.0, -1.0])], [tf.constant([1.0, 2.0])]
  correction = control_variates.correction(client, server)
  assert _arrays(correction) == [[2.0, -3.0]]
  # g - c_i + c = (5 - 3 + 1, 5 + 1 + 2)
  gradients = [tf.constant([5.0, 5.0])]
  corrected = control_variates.corrected_gradients(gradients, correction)
  assert _arrays(corrected) == [[3.0, 8.0]]


def test_next_client_control_variate_by_hand():
  # h + (x - y) / (M eta) = 2 + (1 - 0.5) / (4 * 0.25) and -3 + (1 - 3) / 1
  found = control_variates.plus_mean_step(
    [tf.constant([2.0, -3.0])],
    [tf.constant([1.0, 1.0])],
    [tf.constant([0.5, 3.0])],
    num_steps=tf.constant(4, tf.int64),
    learning_rate=tf.constant(0.25),
  )
  assert _arrays(found) == [[2.5, -5.0]]


def test_no_steps():
  h = [tf.constant([2.0])]
  found = control_variates.plus_mean_step(
    h,
    [tf.constant([1.0])],
    [tf.constant([1.0])],
    num_steps=0,
    learning_rate=0.1,
  )
  assert _arrays(found) == [[2.0]]


def test_next_server_control_variate_by_hand():
  # Equal weights, 2 of 5 clients, changes 4 and -8:
  # (5 * 1 + 4 - 8) / 5 = c + 2/5 * -2 = 0.2
  (found,) = control_variates.next_server_control_variate(
    [tf.constant([1.0])],
    [tf.constant([4.0 - 8.0])],
    tf.constant(5.0),
    tf.constant(5.0),
  )
  np.testing.assert_allclose(found, [0.2], rtol=1e-6)
  # A client of weight 1 keeps 2; one of weight 3 comes, and keeps -4:
  # (1 * 2 + 3 * -4) / 4
  (found,) = control_variates.next_server_control_variate(
    [tf.constant([2.0])],
    [tf.constant([3 * -4.0])],
    tf.constant(1.0),
    tf.constant(4.0),
  )
  np.testing.assert_allclose(found, [-2.5], rtol=1e-6)


def test_total_weight_by_hand():
  seen, num_seen = tf.constant(6.0), tf.constant(2.0)
  assert float(control_variates.total_weight(seen, num_seen, 5)) == 15.0
  assert float(control_variates.total_weight(seen, num_seen, None)) == 6.0
  none = tf.constant(0.0)
  assert float(control_variates.total_weight(none, none, 5)) == 0.0


def test_a_round_without_clients_leaves_the_server():
  for weight in (0.0, 3.0):
    (found,) = control_variates.next_server_control_variate(
      [tf.constant([1.5])],
      [tf.constant([0.0])],
      tf.constant(weight),
      tf.constant(weight),
    )
    assert found.numpy().tolist() == [1.5]
