"""Next-token loss over a tied softmax without keeping all logits.

The logits of a batch ([tokens, vocabulary]) are the largest tensor of a
language model. Where they would be large they are formed for some tokens at a
time, and formed again in the backward pass.
"""

import tensorflow as tf


def token_losses(
  hidden: tf.Tensor,
  embedding: tf.Tensor,
  targets: tf.Tensor,
  *,
  tokens_per_chunk: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the cross-entropy and the hit of every token.

  Args:
    hidden: Float [tokens, width], output of the last layer.
    embedding: Float [vocabulary, width], dtype of `hidden`; logits are
      `hidden embedding^T`.
    targets: Int32 [tokens], the ids to predict.
    tokens_per_chunk: Logits kept at a time; None: all, kept for the gradient.

  Returns:
    (loss, correct): float32 [tokens], loss in nats, correct 1.0 where the
    likeliest id is the target. No gradient flows through `correct`.
  """
  if tokens_per_chunk is None:
    logits = _logits(hidden, embedding)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return loss, _is_argmax(logits, targets)
  return _chunked(hidden, embedding, targets, tokens_per_chunk)


def _logits(hidden, embedding):
  # float32 whatever the products' dtype: the softmax sums over thousands.
  return tf.cast(tf.matmul(hidden, embedding, transpose_b=True), tf.float32)


def _is_argmax(logits, targets):
  best = tf.argmax(logits, axis=-1, output_type=targets.dtype)
  return tf.stop_gradient(tf.cast(tf.equal(best, targets), tf.float32))


def _chunked(hidden, embedding, targets, size):
  """`token_losses` by chunks, with its gradient."""

  @tf.custom_gradient
  def losses(hidden, embedding):
    results = _forward(hidden, embedding, targets, size)

    def gradient(loss_gradient, unused_correct_gradient):
      return _backward(hidden, embedding, targets, size, loss_gradient)

    return results, gradient

  return losses(hidden, embedding)


def _forward(hidden, embedding, targets, size):
  num_chunks = _num_chunks(hidden, size)

  def add(index, loss, correct):
    logits = _logits(_chunk(hidden, index, size), embedding)
    wanted = _chunk(targets, index, size)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
    return (
      index + 1,
      loss.write(index, losses),
      correct.write(index, _is_argmax(logits, wanted)),
    )

  _, loss, correct = tf.while_loop(
    lambda index, *_: index < num_chunks,
    add,
    (0, _arrays(tf.float32, num_chunks), _arrays(tf.float32, num_chunks)),
    parallel_iterations=1,
  )
  return _gathered(loss, []), _gathered(correct, [])


def _backward(hidden, embedding, targets, size, loss_gradient):
  num_chunks = _num_chunks(hidden, size)

  def add(index, hidden_gradient, embedding_gradient):
    states = _chunk(hidden, index, size)
    wanted = _chunk(targets, index, size)
    # d loss / d logits = softmax - onehot, times what comes from above.
    logits_gradient = tf.cast(
      (
        tf.nn.softmax(_logits(states, embedding))
        - tf.one_hot(wanted, embedding.shape[0])
      )
      * _chunk(loss_gradient, index, size)[:, tf.newaxis],
      hidden.dtype,
    )
    added = tf.matmul(logits_gradient, states, transpose_a=True)
    return (
      index + 1,
      hidden_gradient.write(index, tf.matmul(logits_gradient, embedding)),
      embedding_gradient + tf.cast(added, tf.float32),
    )

  _, hidden_gradient, embedding_gradient = tf.while_loop(
    lambda index, *_: index < num_chunks,
    add,
    (
      0,
      _arrays(hidden.dtype, num_chunks),
      tf.zeros(embedding.shape, tf.float32),
    ),
    parallel_iterations=1,
  )
  return (
    _gathered(hidden_gradient, [hidden.shape[-1]]),
    tf.cast(embedding_gradient, embedding.dtype),
  )


def _num_chunks(hidden, size):
  return -(-tf.shape(hidden)[0] // size)


def _chunk(tensor, index, size):
  return tensor[index * size : (index + 1) * size]


def _arrays(dtype, num_chunks):
  return tf.TensorArray(
    dtype, num_chunks, infer_shape=False, element_shape=None
  )


def _gathered(arrays, element_shape):
  # The last chunk may be shorter, so elements have no common first size.
  return tf.ensure_shape(arrays.concat(), [None, *element_shape])
