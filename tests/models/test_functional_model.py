"""The language model as `tff.learning` sees it: masks, metrics, size."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models import transformer
from models.functional_model import build_language_model
from models.transformer_config import PRESETS, TransformerConfig
from tff_fedfish.methods.fed_avg import build_fed_avg

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


@pytest.mark.parametrize(
  ('dtype', 'xla'),
  [('float32', False), ('float32', True), ('bfloat16', False)],
)
def test_features_make_the_logits_of_every_target(dtype, xla):
  config = dataclasses.replace(_CONFIG, compute_dtype=dtype)
  spec = build_language_model(config, model_seed=1, xla=xla)
  weights = spec.draw_initial_weights()
  tokens = tf.constant(
    [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [0, 0, 0, 0, 0]], tf.int32
  )
  features, mask = spec.features(weights, tokens, tf.constant([3, 1, 0]))
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
