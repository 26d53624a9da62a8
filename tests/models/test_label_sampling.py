"""Labels that a model draws: how often, from which seed, in chunks."""

import numpy as np
import pytest
import tensorflow as tf

from models import token_loss
from models.token_loss import draw_labels


def test_frequencies_are_the_probabilities():
  # Softmax of (0, ln 2, 0) is (1, 2, 1) / 4.
  count = 20_000
  logits = tf.tile([[0.0, float(np.log(2)), 0.0]], [count, 1])
  labels = draw_labels(logits, [1, 2])
  assert labels.dtype == tf.int32
  found = np.bincount(labels.numpy(), minlength=3) / count
  expected = np.array([1 / 4, 1 / 2, 1 / 4])
  error = np.sqrt(expected * (1 - expected) / count)
  assert np.all(np.abs(found - expected) < 4 * error)


def test_row_does_not_depend_on_the_others():
  logits = tf.random.stateless_normal([6, 5], [1, 1])
  others = tf.concat([logits[:2], -3 * logits[2:3], logits[3:]], axis=0)
  first, second = (draw_labels(t, [1, 2]).numpy() for t in (logits, others))
  np.testing.assert_array_equal(np.delete(first, 2), np.delete(second, 2))
  assert np.any(first != draw_labels(logits, [1, 3]).numpy())


def test_from_nan_comes_a_label_and_a_loss_that_is_nan():
  logits = tf.constant([[np.nan] * 3, [0.0, 1.0, 2.0]])
  labels = draw_labels(logits, [1, 2])
  assert set(labels.numpy()) <= {0, 1, 2}
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  np.testing.assert_array_equal(np.isnan(losses), [True, False])


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_chunks_have_seeds_of_their_own(dtype):
  hidden, embedding = (
    tf.cast(3 * tf.random.stateless_normal(shape, [2, 2]), dtype)
    for shape in ([7, 4], [50, 4])
  )
  logits = tf.cast(tf.matmul(hidden, embedding, transpose_b=True), tf.float32)
  whole = token_loss.draw_tokens(hidden, embedding, [1, 2])
  np.testing.assert_array_equal(whole, draw_labels(logits, [1, 2]))
  # 7 tokens by 3: the last chunk has one.
  expected = [
    draw_labels(
      logits[3 * chunk : 3 * chunk + 3],
      tf.random.experimental.stateless_fold_in([1, 2], chunk),
    )
    for chunk in range(3)
  ]
  draw = tf.function(token_loss.draw_tokens)
  found = draw(hidden, embedding, tf.constant([1, 2]), tokens_per_chunk=3)
  np.testing.assert_array_equal(found, np.concatenate(expected))


def test_gradient_is_that_at_the_drawn_tokens():
  hidden = tf.random.stateless_normal([7, 4], [2, 2])
  embedding = tf.random.stateless_normal([9, 4], [2, 3])

  @tf.function
  def gradients(hidden, embedding, tokens_per_chunk):
    with tf.GradientTape() as tape:
      tape.watch([hidden, embedding])
      targets = token_loss.draw_tokens(
        hidden, embedding, [1, 2], tokens_per_chunk=tokens_per_chunk
      )
      losses, _ = token_loss.token_losses(
        hidden, embedding, targets, tokens_per_chunk=tokens_per_chunk
      )
      loss = tf.reduce_sum(losses)
    return tape.gradient(loss, [hidden, embedding]), targets

  for tokens_per_chunk in (None, 3):
    found, targets = gradients(hidden, embedding, tokens_per_chunk)
    probabilities = tf.nn.softmax(
      tf.matmul(hidden, embedding, transpose_b=True)
    )
    excess = probabilities - tf.one_hot(targets, 9)
    np.testing.assert_allclose(found[0], excess @ embedding, atol=1e-5)
    np.testing.assert_allclose(
      found[1], tf.matmul(excess, hidden, transpose_a=True), atol=1e-5
    )
