"""The transformer as a function: causality, gradients, equal variants."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from models import attention, token_loss, transformer, transformer_config
from models.model_shapes import are_matrices, num_parameters
from models.transformer_config import PRESETS, TransformerConfig, weight_shapes

_CONFIG = TransformerConfig(
  num_layers=3, width=12, num_heads=2, vocabulary_size=17, sequence_length=7
)
_VARIANTS = [
  dict(position_embedding=position, layer_loop=loop)
  for position in ('learned', 'rotary')
  for loop in ('unrolled', 'foldl')
]


def _weights(config, seed=5, scale=10.0):
  # Larger than at initialization, so that every part matters.
  return tuple(
    tf.random.stateless_normal(w.shape, [seed, i]) * 0.02 * scale
    + (1.0 if name.endswith('/scale') else 0.0)
    for i, (name, w) in enumerate(
      zip(
        weight_shapes(config),
        transformer.initial_weights(config, seed),
        strict=True,
      )
    )
  )


def _tokens(config, batch=2, extra=0, seed=0):
  return tf.constant(
    np.random.RandomState(seed).randint(
      config.vocabulary_size, size=(batch, config.sequence_length + extra)
    ),
    tf.int32,
  )


@pytest.mark.parametrize('variant', _VARIANTS)
def test_changing_a_token_leaves_earlier_logits_unchanged(variant):
  config = dataclasses.replace(_CONFIG, **variant)
  weights, tokens = _weights(config), _tokens(config)
  before = transformer.logits(config, weights, tokens).numpy()
  for position in range(config.sequence_length):
    changed = tokens.numpy()
    changed[:, position] = (changed[:, position] + 1) % config.vocabulary_size
    after = transformer.logits(config, weights, tf.constant(changed)).numpy()
    np.testing.assert_array_equal(before[:, :position], after[:, :position])
    assert np.abs(before[:, position:] - after[:, position:]).max() > 1e-3


def test_attention_equals_its_definition_and_gradient(monkeypatch):
  q, k, v = (tf.random.stateless_normal([2, 3, 7, 4], [2, i]) for i in range(3))

  def definition(q, k, v):
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(4)
    mask = tf.linalg.band_part(tf.ones([7, 7]), -1, 0)
    weights = tf.exp(scores) * mask
    return tf.matmul(weights / tf.reduce_sum(weights, -1, keepdims=True), v)

  def run(function):
    with tf.GradientTape() as tape:
      tape.watch([q, k, v])
      output = function(q, k, v)
      loss = tf.reduce_sum(tf.sin(output))
    return [output, *tape.gradient(loss, [q, k, v])]

  whole = run(attention.causal_attention)
  # Blocks of 3, 3 and 1.
  monkeypatch.setattr(transformer_config, '_QUERY_BLOCK_LENGTH', 3)
  for found in (whole, run(attention.causal_attention)):
    for one, other in zip(run(definition), found, strict=True):
      np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.parametrize(
  'position', ['learned', pytest.param('rotary', marks=pytest.mark.slow)]
)
def test_foldl_equals_unrolled(position):
  def run(layer_loop):
    config = dataclasses.replace(
      _CONFIG, layer_loop=layer_loop, position_embedding=position
    )
    weights, tokens = _weights(config), _tokens(config, extra=1)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = tf.reduce_mean(
        transformer.next_token_losses(config, weights, tokens)[0]
      )
    return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, weights))]

  folded = tf.function(run)('foldl')
  for found, expected in zip(folded, run('unrolled'), strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('tokens_per_chunk', [4, 5])
def test_chunked_loss_equals_the_whole(tokens_per_chunk):
  hidden = tf.random.stateless_normal([10, 6], [1, 2])
  embedding = tf.random.stateless_normal([13, 6], [3, 4])
  targets = tf.constant([0, 12, 3, 3, 5, 7, 1, 0, 9, 12])
  upstream = tf.random.stateless_uniform([10], [5, 6])

  def run(chunk):
    @tf.function
    def graph():
      with tf.GradientTape() as tape:
        tape.watch([hidden, embedding])
        loss, correct = token_loss.token_losses(
          hidden, embedding, targets, tokens_per_chunk=chunk
        )
        total = tf.reduce_sum(loss * upstream)
      return [loss, correct, *tape.gradient(total, [hidden, embedding])]

    return graph()

  for whole, chunked in zip(run(None), run(tokens_per_chunk), strict=True):
    np.testing.assert_allclose(chunked, whole, atol=1e-5)


def test_chunks_are_used_only_where_logits_are_large():
  # 128 tokens x 32,000 ids x 4 bytes = 16 MB: whole.
  assert transformer_config.logits_chunk_length(128, 32_000) is None
  # 1,024 x 32,000 x 4 = 131 MB: 64 MiB // 128,000 = 524 tokens at a time.
  assert transformer_config.logits_chunk_length(1_024, 32_000) == 524


def test_bfloat16_is_near_float32_and_keeps_float32_gradients():
  results = []
  for dtype in ('float32', 'bfloat16'):
    config = dataclasses.replace(_CONFIG, compute_dtype=dtype)
    weights, tokens = _weights(config, scale=3.0), _tokens(config, extra=1)
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = tf.reduce_mean(
        transformer.next_token_losses(config, weights, tokens)[0]
      )
    gradients = tape.gradient(loss, weights)
    assert {tf.convert_to_tensor(g).dtype for g in gradients} == {tf.float32}
    results.append(float(loss))
  assert results[0] == pytest.approx(results[1], rel=0.02)
  assert results[0] != results[1]


def test_initial_weights_are_a_function_of_the_seed():
  first, again, other = (
    transformer.initial_weights(_CONFIG, seed) for seed in (1, 1, 2)
  )
  tf.nest.map_structure(np.testing.assert_array_equal, first, again)
  assert np.abs(first[0] - other[0]).max() > 0.01
  shapes = weight_shapes(_CONFIG)
  assert [tuple(w.shape) for w in first] == list(shapes.values())
  named = dict(zip(shapes, first, strict=True))
  # 1,296 and 1,728 draws; 0.02 / sqrt(2 x 3) = 0.00816.
  for name, stddev in (('input', 0.02), ('output', 0.00816)):
    kernel = named[f'block/attention_{name}/kernel']
    assert np.std(kernel) == pytest.approx(stddev, rel=0.1)


def test_stacked_biases_and_norms_are_no_matrices():
  flags = zip(weight_shapes(_CONFIG), are_matrices(_CONFIG), strict=True)
  assert [name for name, is_matrix in flags if is_matrix] == [
    'token_embedding',
    'position_embedding',
    'block/attention_input/kernel',
    'block/attention_output/kernel',
    'block/mlp_expand/kernel',
    'block/mlp_contract/kernel',
  ]


@pytest.mark.parametrize(
  ('preset', 'expected'),
  # 12 L D^2 + 13 L D + V D + S D + 2 D with S = 128, for instance tiny:
  # 786,432 + 6,656 + 262,144 + 16,384 + 256 = 1,071,872.
  [
    ('tiny', 1_071_872),
    ('1.5b', 1_526_966_400),
  ],
)
def test_preset_sizes(preset, expected):
  config = TransformerConfig(**PRESETS[preset], sequence_length=128)
  assert num_parameters(config) == expected


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (dict(num_heads=5), r'`width` must be a multiple of `num_heads` \(5\)'),
    (dict(num_layers=0), '`num_layers` must be at least 1, found 0'),
    (
      dict(position_embedding='rotary', num_heads=4),
      'even `width / num_heads`, found 3',
    ),
    (dict(compute_dtype='float16'), "one of float32, bfloat16, found 'flo"),
  ],
)
def test_impossible_shapes_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(_CONFIG, **change)


def test_too_many_positions_are_refused():
  tokens = tf.zeros([1, _CONFIG.sequence_length + 1], tf.int32)
  with pytest.raises(ValueError, match='has 8 positions, but .* 7'):
    transformer.apply(_CONFIG, _weights(_CONFIG), tokens)
