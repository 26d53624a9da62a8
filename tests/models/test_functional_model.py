"""The language model as `tff.learning` sees it: masks, metrics, size."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models import transformer
from models.functional_model import build_language_model
from models.token_loss import draw_labels
from models.transformer_config import PRESETS, TransformerConfig
from tff_fedfish.algorithms.fed_avg import build_fed_avg

_CONFIG = TransformerConfig(
  num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=4
)


def _output():
  spec = build_language_model(_CONFIG, model_seed=1)
  weights = spec.draw_initial_weights()
  tokens = tf.constant([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]], tf.int32)
  losses, _ = transformer.next_token_losses(_CONFIG, weights[0], tokens)
  output = spec.functional_model.predict_on_batch(weights, tokens, False)
  return spec.functional_model, losses.numpy(), output


def test_loss_is_the_mean_over_real_targets():
  model, losses, output = _output()
  # Row 0 has 3 real targets, row 1 one: a mean over 4 tokens, not of 2 rows.
  expected = (losses[0, :3].sum() + losses[1, 0]) / 4
  found = model.loss(output, tf.constant([3, 1]))
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert abs(expected - losses.mean()) > 1e-6


def test_batch_without_targets_has_loss_zero():
  model, _, output = _output()
  assert model.loss(output, tf.constant([0, 0])) == 0.0


def test_padding_never_reaches_the_loss():
  spec = build_language_model(_CONFIG, model_seed=1)
  weights = spec.draw_initial_weights()
  losses = []
  for padding in (0, 9):
    tokens = tf.constant([[1, 2, 3, padding, padding]], tf.int32)
    output = spec.functional_model.predict_on_batch(weights, tokens, True)
    losses.append(float(spec.functional_model.loss(output, tf.constant([2]))))
  assert losses[0] == losses[1]


def _drawn(tokens, num_targets, seed=(3, 4)):
  """Returns drawn loss, number of targets and gradients, seeds in the batch."""
  spec = build_language_model(_CONFIG, model_seed=1, noise_seeds=True)
  weights = spec.draw_initial_weights()
  x = collections.OrderedDict(
    tokens=tf.constant(tokens, tf.int32),
    noise_seed=tf.zeros([len(tokens), 2], tf.int32),
  )
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss, count = spec.sampled_label_loss(
      weights, x, tf.constant(num_targets), seed
    )
  gradients = tape.gradient(loss, weights[0])
  return (
    loss.numpy(),
    count.numpy(),
    [tf.convert_to_tensor(g) for g in gradients],
  )


def test_drawn_loss_is_the_sum_over_real_targets():
  tokens = [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
  loss, count, _ = _drawn(tokens, [3, 1])
  weights = build_language_model(_CONFIG, model_seed=1).draw_initial_weights()
  inputs = tf.constant(tokens, tf.int32)[:, :-1]
  logits = transformer.logits(_CONFIG, weights[0], inputs)
  rows = tf.reshape(logits, [-1, 11])
  losses = -tf.gather(
    tf.nn.log_softmax(rows), draw_labels(rows, [3, 4]), batch_dims=1
  )
  losses = losses.numpy().reshape(2, 4)
  np.testing.assert_allclose(
    loss, losses[0, :3].sum() + losses[1, 0], rtol=1e-6
  )
  assert count == 4
  other_seed, _, _ = _drawn(tokens, [3, 1], seed=(3, 5))
  assert other_seed != loss


def test_padding_and_the_last_token_never_reach_the_drawn_loss():
  # Two targets: what follows 1 and what follows 2. The 3 is only a label.
  loss, count, gradients = _drawn([[1, 2, 3, 0, 0]], [2])
  other_loss, other_count, other_gradients = _drawn([[1, 2, 9, 9, 9]], [2])
  assert (loss, count) == (other_loss, other_count)
  assert count == 2
  for one, other in zip(gradients, other_gradients, strict=True):
    np.testing.assert_array_equal(one, other)
  assert any(np.any(gradient) for gradient in gradients)


def test_seeds_in_the_batch_change_no_prediction():
  tokens = tf.constant([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]], tf.int32)
  _, losses, _ = _output()
  spec = build_language_model(_CONFIG, model_seed=1, noise_seeds=True)
  x = collections.OrderedDict(
    tokens=tokens, noise_seed=tf.ones([2, 2], tf.int32)
  )
  assert list(spec.functional_model.input_spec['x']) == list(x)
  output = spec.functional_model.predict_on_batch(
    spec.draw_initial_weights(), x, True
  )
  np.testing.assert_allclose(output['token_loss'], losses, rtol=1e-6)


@pytest.mark.parametrize(
  ('dtype', 'xla'),
  [('float32', False), ('float32', True), ('bfloat16', False)],
)
def test_features_make_the_logits_of_every_target(dtype, xla):
  config = dataclasses.replace(_CONFIG, compute_dtype=dtype)
  spec = build_language_model(config, model_seed=1, xla=xla, noise_seeds=True)
  weights = spec.draw_initial_weights()
  tokens = tf.constant(
    [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [0, 0, 0, 0, 0]], tf.int32
  )
  x = collections.OrderedDict(
    tokens=tokens, noise_seed=tf.ones([3, 2], tf.int32)
  )
  features, mask = spec.features(weights, x, tf.constant([3, 1, 0]))
  # 3 rows of 4 positions.
  assert features.shape == [12, 8]
  assert features.dtype == mask.dtype == tf.float32
  np.testing.assert_array_equal(mask, [1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0])
  logits = transformer.logits(config, weights[0], tokens[:, :-1])
  np.testing.assert_allclose(
    tf.matmul(features, weights[0][0], transpose_b=True),
    tf.reshape(logits, [12, 11]),
    rtol=1e-5 if dtype == 'float32' else 0.02,
    atol=1e-6 if dtype == 'float32' else 2e-3,
  )


def test_weights_of_a_large_model_never_become_graph_constants():
  # One layer is built several times faster than the preset's six.
  shape = PRESETS['small'] | dict(num_layers=1)
  config = TransformerConfig(**shape, sequence_length=8)
  process = build_fed_avg(
    build_language_model(config, model_seed=1),
    client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )
  # 4.9 M weights are 20 MB; their graph is some kilobytes.
  proto = process.initialize.to_building_block().proto
  assert proto.ByteSize() < 1_000_000
