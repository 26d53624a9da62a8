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
  if tokens_per_chunk is not None:
    return _chunked(hidden, embedding, targets, tokens_per_chunk)
  return _losses(logits(hidden, embedding), targets)


def logits(hidden: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
  """Returns `hidden embedding^T`, multiplied in the dtype of `hidden`.

  It is float32 whatever that dtype is: the softmax sums over thousands.
  """
  embedding = tf.cast(embedding, hidden.dtype)
  return tf.cast(tf.matmul(hidden, embedding, transpose_b=True), tf.float32)


def _losses(logits, targets):
  best = tf.argmax(logits, axis=-1, output_type=targets.dtype)
  correct = tf.stop_gradient(tf.cast(tf.equal(best, targets), tf.float32))
  loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
  return loss, correct


def _chunked(hidden, embedding, targets, size):
  """`token_losses` by chunks, with its gradient."""

  def forward(total, hidden, targets):
    return total, _losses(logits(hidden, embedding), targets)

  def backward(total, hidden, targets, loss_gradient):
    # d loss / d logits = softmax - onehot, times what comes from above.
    probabilities = tf.nn.softmax(logits(hidden, embedding))
    logits_gradient = tf.cast(
      (probabilities - tf.one_hot(targets, embedding.shape[0]))
      * loss_gradient[:, tf.newaxis],
      hidden.dtype,
    )
    added = tf.matmul(logits_gradient, hidden, transpose_a=True)
    total += tf.cast(added, tf.float32)
    return total, (tf.matmul(logits_gradient, embedding),)

  @tf.custom_gradient
  def losses(hidden, embedding):
    def gradient(loss_gradient, unused_correct_gradient):
      total, (hidden_gradient,) = _over_chunks(
        backward,
        (hidden, targets, loss_gradient),
        size,
        dtypes=(hidden.dtype,),
        total=tf.zeros(embedding.shape, tf.float32),
      )
      hidden_gradient = tf.ensure_shape(hidden_gradient, hidden.shape)
      return hidden_gradient, tf.cast(total, embedding.dtype)

    _, results = _over_chunks(
      forward, (hidden, targets), size, dtypes=(tf.float32, tf.float32)
    )
    return tuple(tf.ensure_shape(r, [None]) for r in results), gradient

  return losses(hidden, embedding)


def _over_chunks(compute, tensors, size, *, dtypes, total=()):
  """Returns the last total, and the outputs of all chunks, concatenated.

  `compute` is (total, chunk of each tensor) -> (total, outputs of `dtypes`).
  """
  num_chunks = -(-tf.shape(tensors[0])[0] // size)

  def add(index, total, arrays):
    chunks = (tensor[index * size : (index + 1) * size] for tensor in tensors)
    total, outputs = compute(total, *chunks)
    written = (
      array.write(index, output)
      for array, output in zip(arrays, outputs, strict=True)
    )
    return index + 1, total, tuple(written)

  # The last chunk may be shorter, so elements have no common first size.
  arrays = tuple(
    tf.TensorArray(dtype, num_chunks, infer_shape=False) for dtype in dtypes
  )
  _, total, arrays = tf.while_loop(
    lambda index, *_: index < num_chunks,
    add,
    (0, total, arrays),
    parallel_iterations=1,
  )
  return total, tuple(array.concat() for array in arrays)
