"""The language model as `tff.learning` sees it: masks, metrics, size, XLA."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models import transformer
from models.functional_model import build_image_model, build_language_model
from models.image_model_config import ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish import build_fed_avg
from tff_fedfish.rounds.gradients import batch_gradients

_CONFIG = TransformerConfig(
  num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=4
)
# Rows of 3, 1 and 0 real targets; padding is 0 in the second, 9 in the third.
_TOKENS = tf.constant(
  [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [9, 9, 9, 9, 9]], tf.int32
)


def test_loss_is_the_mean_over_real_targets():
  spec = build_language_model(_CONFIG, model_seed=1)
  weights, model = spec.draw_initial_weights(), spec.functional_model
  losses = transformer.next_token_losses(_CONFIG, weights[0], _TOKENS)[0]
  output = model.predict_on_batch(weights, _TOKENS, False)
  # A mean over 4 tokens, not of 2 rows.
  expected = (tf.reduce_sum(losses[0, :3]) + losses[1, 0]) / 4
  found = model.loss(output, tf.constant([3, 1, 0]))
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert abs(expected - tf.reduce_mean(losses)) > 1e-6
  # What the padding holds does not matter.
  others = tf.tensor_scatter_nd_update(_TOKENS, [[1, 3], [2, 1]], [4, 8])
  output = model.predict_on_batch(weights, others, True)
  assert model.loss(output, tf.constant([3, 1, 0])) == found
  assert model.loss(output, tf.constant([0, 0, 0])) == 0.0


@pytest.mark.parametrize(
  ('dtype', 'xla'),
  [('float32', False), ('float32', True), ('bfloat16', False)],
)
def test_features_make_the_logits_of_every_target(dtype, xla):
  config = dataclasses.replace(_CONFIG, compute_dtype=dtype)
  spec = build_language_model(config, model_seed=1, xla=xla)
  weights = spec.draw_initial_weights()
  features, mask = spec.features(weights, _TOKENS, tf.constant([3, 1, 0]))
  # 3 rows of 4 positions.
  assert features.shape == [12, 8]
  assert features.dtype == mask.dtype == tf.float32
  np.testing.assert_array_equal(mask, [1, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0])
  logits = transformer.logits(config, weights[0], _TOKENS[:, :-1])
  np.testing.assert_allclose(
    tf.matmul(features, weights[0][0], transpose_b=True),
    tf.reshape(logits, [12, 11]),
    rtol=1e-5 if dtype == 'float32' else 0.02,
    atol=1e-6 if dtype == 'float32' else 2e-3,
  )


@pytest.mark.slow
def test_xla_compiles_the_same_loss_and_gradients():
  batch = collections.OrderedDict(x=_TOKENS, y=tf.constant([3, 1, 0]))

  def loss_and_gradients(xla):
    spec = build_language_model(_CONFIG, model_seed=1, xla=xla)
    trainable, _ = spec.draw_initial_weights()

    @tf.function
    def run():
      found = batch_gradients(
        spec.functional_model, trainable, (), batch, training=True
      )
      return found.loss, found.data

    graph = run.get_concrete_function().graph.as_graph_def()
    compiled = [
      function.attr['_XlaMustCompile'].b for function in graph.library.function
    ]
    # Both directions, or nothing.
    assert compiled.count(True) >= 2 if xla else not any(compiled)
    return run()

  (loss, gradients), (plain_loss, plain_gradients) = map(
    loss_and_gradients, (True, False)
  )
  np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
  for found, expected in zip(gradients, plain_gradients, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_drawn_weights_of_a_language_model_are_no_graph_constants():
  config = dataclasses.replace(_CONFIG, width=500, vocabulary_size=10_000)
  spec = build_language_model(config, model_seed=1)
  specs, _ = spec.functional_model.initial_weights
  assert {type(weight) for weight in specs} == {tf.TensorSpec}
  # 8 M weights are 32 MB.
  draw = tff.tensorflow.computation(spec.draw_initial_weights)
  assert draw.to_building_block().proto.ByteSize() < 1_000_000


@pytest.mark.slow
def test_weights_of_a_large_model_never_become_graph_constants():
  # A linear model is built fastest.
  config = ImageModelConfig(
    name='linear', num_classes=10, image_shape=(500, 1000, 1)
  )
  process = build_fed_avg(
    build_image_model(config, model_seed=1),
    client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )
  # 5 M weights are 20 MB; their graph is some kilobytes.
  proto = process.initialize.to_building_block().proto
  assert proto.ByteSize() < 1_000_000
