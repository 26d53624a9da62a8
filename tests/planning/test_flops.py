"""Operation counts by hand, and against TensorFlow's own profiler."""

import dataclasses

import planned_configs
import pytest
import tensorflow as tf

from models import transformer, transformer_config
from models.model_shapes import num_parameters
from models.transformer_config import TransformerConfig, weight_shapes
from tff_fedfish.planning import flops
from tff_fedfish.planning.client_steps import client_steps

_OWN = {'algorithm__name': 'own_methods.noisy_mean'}
_SHAPE = TransformerConfig(
  num_layers=1, width=3, num_heads=1, vocabulary_size=5, sequence_length=4
)


def test_products_by_hand():
  # 2 rows of 4 tokens, T = 8, d = 3, V = 5, one block of 4 x 4 scores.
  # Dense: inputs 2*8*3*9 = 432, output 2*8*3*3 = 144, MLP twice 2*8*3*12 = 576.
  # Attention: scores 2 rows * 2*4*3*4 = 192, values the same.
  # Logits: 2*8*3*5 = 240.
  assert flops.forward(_SHAPE, 2) == flops.ProductFlops(
    dense=432 + 144 + 2 * 576, attention=2 * 192, logits=240
  )
  # By inputs and by kernels; attention five products of 192; logits twice.
  assert flops.backward(_SHAPE, 2) == flops.ProductFlops(
    dense=2 * 1728, attention=5 * 192, logits=480
  )
  # Of 3 layers everything but the logits is three times as much.
  deep = dataclasses.replace(_SHAPE, num_layers=3)
  assert flops.forward(deep, 2) == flops.ProductFlops(
    dense=3 * 1728, attention=3 * 384, logits=240
  )


def test_attention_counts_the_blocks_that_are_computed(monkeypatch):
  monkeypatch.setattr(transformer_config, '_QUERY_BLOCK_LENGTH', 3)
  shape = dataclasses.replace(_SHAPE, sequence_length=7)
  assert transformer_config.query_blocks(7) == [(0, 3), (3, 6), (6, 7)]
  # 9 + 18 + 7 = 34 of 49 scores; two products of 2 * 3 * 34 each.
  assert flops.forward(shape, 1).attention == 2 * 2 * 3 * 34
  assert flops.backward(shape, 1).attention == 5 * 2 * 3 * 34


def test_long_logits_are_formed_twice(monkeypatch):
  # A row's logits are 4 bytes * 4 * 5 = 80.
  monkeypatch.setattr(transformer_config, 'MAX_LOGITS_BYTES', 80)
  assert flops.backward(_SHAPE, 2).logits == 2 * 240
  monkeypatch.setattr(transformer_config, 'MAX_LOGITS_BYTES', 79)
  assert flops.backward(_SHAPE, 2).logits == 3 * 240


def _profiled(shape, num_rows):
  """Returns TensorFlow's count of products: (forward, backward)."""
  with tf.Graph().as_default() as graph:
    tokens = tf.compat.v1.placeholder(
      tf.int32, [num_rows, shape.sequence_length + 1]
    )
    weights = [
      tf.compat.v1.placeholder(tf.float32, tensor_shape)
      for tensor_shape in weight_shapes(shape).values()
    ]
    losses, _ = transformer.next_token_losses(shape, weights, tokens)
    forward = _profiled_products(graph)
    tf.gradients(tf.reduce_mean(losses), weights)
    return forward, _profiled_products(graph) - forward


def _profiled_products(graph):
  builder = tf.compat.v1.profiler.ProfileOptionBuilder
  options = (
    builder(builder.float_operation())
    .with_accounted_types(['.*MatMul.*'])
    .with_empty_output()
    .build()
  )
  # By op: the products alone, without what is elementwise.
  return tf.compat.v1.profiler.profile(
    graph, options=options, cmd='op'
  ).total_float_ops


@pytest.mark.parametrize('block_length', [10, 4])
def test_products_equal_those_of_tensorflows_profiler(
  block_length, monkeypatch
):
  # 10; or 4, 4 and 2.
  monkeypatch.setattr(transformer_config, '_QUERY_BLOCK_LENGTH', block_length)
  shape = TransformerConfig(
    num_layers=1, width=12, num_heads=3, vocabulary_size=50, sequence_length=10
  )
  forward, backward = _profiled(shape, num_rows=5)
  assert forward == flops.forward(shape, 5).total
  # Of scores [rows, columns] that are multiplied transposed, the profiler
  # takes the columns for the inner size. That of the gradients by keys and
  # values is the rows: 2 products of 2 * 5 * 12 * columns * (columns - rows)
  # too many; 0 where there is one block.
  too_many = sum(
    2 * 2 * 5 * 12 * end * start
    for start, end in transformer_config.query_blocks(10)
  )
  assert too_many == {10: 0, 4: 240 * (8 * 4 + 10 * 8)}[block_length]
  assert backward - too_many == flops.backward(shape, 5).total


def test_round_by_hand():
  config = planned_configs.by_hand()
  # A row: dense 24 * 4 * 9 = 864, attention 4 * 3 * 16 = 192, logits
  # 2 * 4 * 3 * 5 = 120: 1176 forward; 1728 + 480 + 240 = 2448 backward.
  # 15 rows, 2 epochs. N = 180; 3 clients of 6 local steps.
  assert num_parameters(config.transformer_config()) == 180
  assert flops.round_flops(config) == flops.RoundFlops(
    local_training=2 * 15 * (1176 + 2448),
    after_training=15 * (1176 + 2448),
    # SGD 2; delta 1, a product and a sum of 2 models; quotient 1, Adam 12.
    updates=(3 * 6 * 2 + 3 * 5 + 13) * 180,
  )


@pytest.mark.parametrize(
  ('settings', 'num_passes_after', 'updates'),
  [
    ({'algorithm__name': 'fed_avg'}, 0, 3 * 6 * 2 + 3 * 3 + 13),
    ({'algorithm__fisher_estimator': 'last_epoch'}, 0, 64),
    ({'algorithm__fisher_estimator': 'example_sq'}, 1, 64),
    # It sums one model and a half, and passes over the rows as often as it is
    # told.
    (_OWN | {'algorithm__num_passes': 0}, 0, 64 - 3 * 2 * 0.5),
    (_OWN, 1, 64 - 3 * 2 * 0.5),
    # Quotient 1, w - lr g: 2.
    ({'server__optimizer': 'sgd'}, 1, 3 * 6 * 2 + 3 * 5 + 3),
    # AdamW with decay 14; quotient 1, and Nesterov's 6.
    (
      {
        'client_work__optimizer': 'adamw',
        'client_work__weight_decay': 0.1,
        'server__optimizer': 'sgd',
        'server__momentum': 0.9,
        'server__nesterov': 'true',
      },
      1,
      3 * 6 * 14 + 3 * 5 + 7,
    ),
    # Full batches: 4 steps over 4 of 5 rows. Noise and a quotient per step; 4
    # for each of 24 rows.
    (
      {'algorithm__name': 'fed_avg', 'local_privacy__clip_norm': 1.0},
      0,
      3 * 4 * 4 + 3 * 3 + 13 + 4 * 24,
    ),
  ],
  ids=str,
)
def test_methods_and_optimizers_by_hand(settings, num_passes_after, updates):
  count = flops.round_flops(planned_configs.by_hand(**settings))
  assert count.after_training == num_passes_after * 15 * 3624
  assert count.updates == updates * 180


def test_the_usual_estimate_is_near_where_products_of_weights_dominate():
  # 6 N D leaves attention out and counts embeddings that are only looked up.
  config = planned_configs.shipped('stack_overflow_350m')
  steps = client_steps(config)
  num_tokens = config.cohort_size * steps.num_sequences * steps.num_passes
  num_tokens *= config.data.sequence_length
  estimate = 6 * num_parameters(config.transformer_config()) * num_tokens
  assert flops.round_flops(config).total == pytest.approx(estimate, rel=0.05)
