"""Text from a language model: token after token, each drawn from the logits.

Every step runs the model on a window of `sequence_length` tokens, the last
ones there are, so that one graph serves prompts and texts of any length. What
is behind the last token fills the window up; attention is causal, so it
changes nothing.
"""

from collections.abc import Callable, Collection

import numpy as np
import tensorflow as tf

from models import token_loss, transformer
from models.transformer_config import TransformerConfig, weight_shapes


def build_sampler(
  config: TransformerConfig,
  *,
  num_samples: int,
  num_tokens: int,
  end_of_text_id: int,
  forbidden_ids: Collection[int] = (),
  temperature: float = 1.0,
  top_k: int | None = None,
) -> Callable[[tuple[tf.Tensor, ...], tf.Tensor, int], tf.Tensor]:
  """Returns a function that continues a prompt several times.

  It is compiled at its first call, once for all weights, prompts and seeds.

  Args:
    config: The model's shape.
    num_samples: Continuations, >= 1.
    num_tokens: Tokens of each, at most, >= 1.
    end_of_text_id: The token that ends a text.
    forbidden_ids: Tokens that are never chosen, such as padding.
    temperature: See `choose_tokens`.
    top_k: See `choose_tokens`.

  Returns:
    `sample(weights, prompt, seed) -> tokens`: weights as
    `transformer.initial_weights` returns them; prompt int32 [length >= 1]; seed
    an int32, of which the tokens are a function; tokens int32 [num_samples,
    num_tokens], in which a text that ended goes on with `end_of_text_id`. It
    raises `tf.errors.InvalidArgumentError` if logits are not finite.
  """
  length = config.sequence_length
  is_allowed = np.ones(config.vocabulary_size, bool)
  is_allowed[list(forbidden_ids)] = False
  specs = (tf.TensorSpec(s, tf.float32) for s in weight_shapes(config).values())

  @tf.function(
    input_signature=[
      tuple(specs),
      tf.TensorSpec([None], tf.int32),
      tf.TensorSpec([], tf.int32),
    ]
  )
  def sample(weights, prompt, seed):
    prompt_length = tf.shape(prompt)[0]
    # Long enough for a whole window at any step.
    stream = tf.concat(
      [
        tf.tile(prompt[tf.newaxis], [num_samples, 1]),
        tf.fill([num_samples, num_tokens + length], end_of_text_id),
      ],
      axis=1,
    )
    columns = tf.range(tf.shape(stream)[1])

    def is_unfinished(step, _, has_ended):
      return (step < num_tokens) & ~tf.reduce_all(has_ended)

    def append(step, stream, has_ended):
      count = prompt_length + step
      logits = _next_logits(config, weights, stream, count)
      tokens = choose_tokens(
        tf.where(is_allowed, logits, -np.inf),
        tf.stack([seed, step]),
        temperature=temperature,
        top_k=top_k,
      )
      tokens = tf.where(has_ended, end_of_text_id, tokens)
      stream = tf.where(columns == count, tokens[:, tf.newaxis], stream)
      has_ended = tf.logical_or(has_ended, tokens == end_of_text_id)
      return step + 1, tf.ensure_shape(stream, [num_samples, None]), has_ended

    stream = tf.ensure_shape(stream, [num_samples, None])
    start = tf.constant(0), stream, tf.zeros([num_samples], tf.bool)
    _, stream, _ = tf.while_loop(is_unfinished, append, start)
    return stream[:, prompt_length : prompt_length + num_tokens]

  return sample


def _next_logits(config, weights, stream, count):
  """Returns the logits of the token after the first `count` of every row."""
  length = config.sequence_length
  start = tf.maximum(count - length, 0)
  window = tf.ensure_shape(
    stream[:, start : start + length], [stream.shape[0], length]
  )
  last = transformer.apply(config, weights, window)[:, count - start - 1]
  logits = token_loss.logits(last, weights[0])
  return tf.debugging.check_numerics(logits, 'The logits are not finite.')


def choose_tokens(
  logits: tf.Tensor,
  seed: tf.Tensor,
  *,
  temperature: float = 1.0,
  top_k: int | None = None,
) -> tf.Tensor:
  """Draws a token a row, each with probability softmax(logits / temperature).

  Args:
    logits: Float32 [rows, vocabulary]; -inf for what must not be drawn.
    seed: Int32 [2]; the draw is a function of it.
    temperature: >= 0. Below 1 the likely become likelier; 0 takes the
      likeliest, and of equal ones the first.
    top_k: Draw from the `top_k` likeliest only, >= 1, of equal ones the
      first; None: from all.

  Returns:
    Int32 [rows].
  """
  if temperature == 0:
    return tf.argmax(logits, axis=-1, output_type=tf.int32)
  token_ids = None
  if top_k is not None and top_k < logits.shape[-1]:
    logits, token_ids = tf.math.top_k(logits, top_k)
  # Less the largest: a small temperature must not make it infinite.
  logits -= tf.reduce_max(logits, axis=-1, keepdims=True)
  drawn = tf.random.stateless_categorical(
    logits / temperature, 1, seed, dtype=tf.int32
  )[:, 0]
  return (
    drawn if token_ids is None else tf.gather(token_ids, drawn, batch_dims=1)
  )
