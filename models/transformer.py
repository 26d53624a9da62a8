"""A decoder-only transformer as pure functions of explicit weights.

Pre-norm blocks, GELU, biases, and a softmax tied to the token embedding, as in
Radford et al. (2019), GPT-2. Positions are learned, or rotary as in Su et al.
(2021), RoFormer.

Weights are a flat tuple in the order of `transformer_config.weight_shapes`,
float32; the weights of the blocks are stacked along their first axis.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from models import attention, token_loss
from models.transformer_config import (
  TransformerConfig,
  logits_chunk_length,
  weight_shapes,
)

_NORM_EPSILON = 1e-5
_INITIAL_STDDEV = 0.02
_ROTARY_BASE = 10_000.0


def initial_weights(
  config: TransformerConfig, seed: int | tf.Tensor
) -> tuple[tf.Tensor, ...]:
  """Draws weights as a function of the seed; ops of the graph, no constants.

  Kernels and embeddings are normal with standard deviation 0.02; the two
  kernels that write to the residual stream are divided by sqrt(2 num_layers),
  so that its variance does not grow with the depth (GPT-2). Norms begin as the
  identity, biases at 0.

  Args:
    config: The model's shape.
    seed: The model seed; scalar int.

  Returns:
    Float32 tensors in the order of `weight_shapes(config)`.
  """
  weights = []
  for index, (name, shape) in enumerate(weight_shapes(config).items()):
    if name.endswith('/scale'):
      weights.append(tf.ones(shape))
    elif name.endswith('/bias'):
      weights.append(tf.zeros(shape))
    else:
      stddev = _INITIAL_STDDEV
      if name in ('block/attention_output/kernel', 'block/mlp_contract/kernel'):
        stddev /= math.sqrt(2 * config.num_layers)
      weights.append(
        tf.random.stateless_normal(shape, seed=[seed, index], stddev=stddev)
      )
  return tuple(weights)


def apply(
  config: TransformerConfig,
  weights: Sequence[tf.Tensor],
  tokens: tf.Tensor,
) -> tf.Tensor:
  """Returns the last layer's normalized output at every position.

  Args:
    config: The model's shape.
    weights: As `initial_weights` returns them.
    tokens: Int32 [batch, length] with static length <= config.sequence_length.

  Returns:
    [batch, length, width] in the compute dtype. Position t depends on tokens
    0 to t only.
  """
  named = dict(zip(weight_shapes(config), weights, strict=True))
  dtype = tf.as_dtype(config.compute_dtype)
  length = tokens.shape[1]
  if length > config.sequence_length:
    raise ValueError(
      f'`tokens` has {length} positions, but the model was built for '
      f'sequence_length {config.sequence_length}.'
    )
  # The residual stream stays float32: only products run in `dtype`.
  stream = tf.gather(named['token_embedding'], tokens)
  if config.position_embedding == 'learned':
    stream += named['position_embedding'][:length]

  block_names = [name for name in named if name.startswith('block/')]
  stacked = [
    tf.cast(named[name], dtype) if name.endswith('/kernel') else named[name]
    for name in block_names
  ]

  def block(stream, layer_weights):
    layer = dict(zip(block_names, layer_weights, strict=True))
    return _block(config, layer, stream)

  if config.unrolls_layers:
    for layer_weights in zip(*(tf.unstack(w) for w in stacked), strict=True):
      stream = block(stream, layer_weights)
  else:
    # foldl hands out elements of a TensorList. Indexing `w[i]` in a loop
    # instead would add a full-size gradient per layer.
    stream = tf.foldl(block, tuple(stacked), initializer=stream)
  return tf.cast(_norm(stream, named, 'final_norm'), dtype)


def logits(
  config: TransformerConfig,
  weights: Sequence[tf.Tensor],
  tokens: tf.Tensor,
) -> tf.Tensor:
  """Returns float32 [batch, length, vocabulary]; see `apply`."""
  return token_loss.logits(apply(config, weights, tokens), weights[0])


def next_token_losses(
  config: TransformerConfig, weights: Sequence[tf.Tensor], tokens: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns loss and hit of predicting tokens[:, 1:] from what precedes.

  `tokens` is int32 [batch, length + 1], length static. Both are float32 [batch,
  length], the loss in nats; the caller masks out positions behind a row's last
  real token.
  """
  inputs = tokens[:, :-1]
  hidden = apply(config, weights, inputs)
  length = inputs.shape[1]
  losses, correct = token_loss.token_losses(
    tf.reshape(hidden, [-1, config.width]),
    tf.cast(weights[0], hidden.dtype),
    tf.reshape(tokens[:, 1:], [-1]),
    tokens_per_chunk=logits_chunk_length(length, config.vocabulary_size),
  )
  return tf.reshape(losses, [-1, length]), tf.reshape(correct, [-1, length])


def _block(config, layer, stream):
  """One pre-norm block; `layer` maps names to this layer's weights."""
  dtype = tf.as_dtype(config.compute_dtype)
  batch, length = tf.shape(stream)[0], stream.shape[1]

  def dense(name, inputs):
    # One large product instead of one per batch row.
    kernel = layer[f'block/{name}/kernel']
    rows = tf.reshape(tf.cast(inputs, dtype), [-1, kernel.shape[0]])
    outputs = tf.matmul(rows, kernel)
    outputs += tf.cast(layer[f'block/{name}/bias'], dtype)
    return tf.reshape(outputs, [batch, length, kernel.shape[1]])

  normed = _norm(stream, layer, 'block/attention_norm')
  joined = dense('attention_input', normed)
  joined = tf.reshape(
    joined, [batch, length, 3, config.num_heads, config.head_width]
  )
  # [3, batch, heads, length, head width]
  query, key, value = tf.unstack(tf.transpose(joined, [2, 0, 3, 1, 4]), num=3)
  if config.position_embedding == 'rotary':
    query, key = _rotate(query), _rotate(key)
  attended = attention.causal_attention(query, key, value)
  attended = tf.reshape(
    tf.transpose(attended, [0, 2, 1, 3]), [batch, length, config.width]
  )
  stream += tf.cast(dense('attention_output', attended), stream.dtype)
  normed = _norm(stream, layer, 'block/mlp_norm')
  expanded = tf.nn.gelu(dense('mlp_expand', normed), approximate=True)
  return stream + tf.cast(dense('mlp_contract', expanded), stream.dtype)


def _norm(inputs, weights, name):
  mean = tf.reduce_mean(inputs, axis=-1, keepdims=True)
  centred = inputs - mean
  variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
  normalized = centred * tf.math.rsqrt(variance + _NORM_EPSILON)
  return normalized * weights[f'{name}/scale'] + weights[f'{name}/bias']


def _rotate(heads):
  """Turns pairs of features by an angle that grows with the position."""
  length, head_width = heads.shape[2], heads.shape[3]
  pairs = tf.range(head_width // 2, dtype=tf.float32)
  frequency = tf.pow(_ROTARY_BASE, -2.0 * pairs / head_width)
  angle = tf.range(length, dtype=tf.float32)[:, tf.newaxis] * frequency
  cosine = tf.cast(tf.cos(angle), heads.dtype)
  sine = tf.cast(tf.sin(angle), heads.dtype)
  first, second = tf.split(heads, 2, axis=-1)
  return tf.concat(
    [first * cosine - second * sine, first * sine + second * cosine], axis=-1
  )
