"""MOON's contrastive loss by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tff_fedfish.mathematics.contrastive import contrastive_loss


def test_vector_v13():
  # cos(z, z_glob) = 1 / sqrt(2), cos(z, z_prev) = 0:
  # -log(e^(0.7071 / 0.5) / (e^(0.7071 / 0.5) + 1)) = log(1 + e^-1.41421)
  loss = contrastive_loss(
    tf.constant([[1.0, 0.0]]),
    tf.constant([[1.0, 1.0]]),
    tf.constant([[0.0, 1.0]]),
    temperature=0.5,
  )
  np.testing.assert_allclose(loss, [0.2176217216], rtol=1e-6)
  expected = math.log(1 + math.exp(-math.sqrt(2)))
  np.testing.assert_allclose(loss, [expected], rtol=1e-6)


def test_the_same_past_and_global_model():
  z = tf.constant([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0]])
  other = tf.constant([[0.3, 1.0, -1.0], [0.0, 2.0, 1.0]])
  with tf.GradientTape() as tape:
    tape.watch(z)
    losses = contrastive_loss(z, other, other, temperature=0.5)
  np.testing.assert_allclose(losses, 2 * [math.log(2)], rtol=1e-6)
  np.testing.assert_array_equal(tape.gradient(losses, z), np.zeros([2, 3]))


def test_length_does_not_matter_and_temperature_does():
  vectors = [[[1.0, 2.0]], [[2.0, -1.0]], [[1.0, 1.0]]]
  z, z_glob, z_prev = map(tf.constant, vectors)
  loss = contrastive_loss(z, z_glob, z_prev, temperature=1.0)
  # cos 0 and 3 / sqrt(10): log(1 + e^(3 / sqrt(10)))
  expected = math.log(1 + math.exp(3 / math.sqrt(10)))
  np.testing.assert_allclose(loss, [expected], rtol=1e-6)
  longer = contrastive_loss(9 * z, 0.1 * z_glob, 5 * z_prev, temperature=1.0)
  np.testing.assert_allclose(longer, loss, rtol=1e-6)
  hotter = contrastive_loss(z, z_glob, z_prev, temperature=3 / math.sqrt(10))
  np.testing.assert_allclose(hotter, [math.log(1 + math.e)], rtol=1e-6)


@pytest.mark.parametrize('zero', range(3))
def test_a_zero_vector_has_a_finite_loss_and_gradient(zero):
  vectors = [tf.constant([[1.0, 2.0]]) for _ in range(3)]
  vectors[zero] = tf.zeros([1, 2])
  with tf.GradientTape() as tape:
    tape.watch(vectors)
    loss = contrastive_loss(*vectors, temperature=0.5)
  for found in (loss, *tape.gradient(loss, vectors)):
    assert np.all(np.isfinite(found))
