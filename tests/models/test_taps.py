"""Taps: same logits with and without, and the gradients that they explain."""

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models import image_model_config
from models.image_classifier import IMAGE_CLASSIFIERS
from models.layers import matrix_of
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot.curvature import inputs_by_position

_SHAPES = small_models.SHAPES


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to trace."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


@pytest.mark.parametrize('name', small_models.IMAGES)
def test_logits_are_the_same_bit_for_bit(name):
  shape = _SHAPES[name]
  spec = small_models.build(shape)
  weights, batch = (
    small_models.random_weights(spec),
    small_models.rows(shape, 4),
  )
  seen = []

  def tap(name, inputs, preactivations):
    seen.append(name)
    return preactivations + tf.zeros_like(preactivations)

  logits = spec.tapped_logits(weights, batch['x'], tap)
  classifier = IMAGE_CLASSIFIERS[shape.name]
  images = classifier.normalize(batch['x']['image'])
  np.testing.assert_array_equal(logits, classifier.logits(weights[0], images))
  assert logits.dtype == tf.float32
  # Every layer once.
  assert len(seen) == len(set(seen))
  assert set(seen) == {layer.name for layer in spec.layers}


def test_a_tap_decides_what_follows():
  shape = _SHAPES['lenet']
  spec = small_models.build(shape)
  batch = small_models.rows(shape, 2)

  def tap(name, inputs, preactivations):
    return 0 * preactivations if name == 'hidden_1' else preactivations

  weights = spec.draw_initial_weights()
  logits = spec.tapped_logits(weights, batch['x'], tap)
  np.testing.assert_array_equal(logits, np.zeros([2, 3]))


def _explained(layer, inputs, gradients):
  """Returns the gradient with respect to V from a tap."""
  features = tf.reshape(gradients, [-1, gradients.shape[-1]])
  inputs = inputs_by_position(layer, inputs)
  inputs = tf.reshape(inputs, [-1, inputs.shape[-1]])
  if layer.kind == 'scale':
    of_scale = tf.reduce_sum(inputs * features, axis=0)
    return tf.stack([of_scale, tf.reduce_sum(features, axis=0)])
  if layer.bias is not None:
    inputs = tf.concat([inputs, tf.ones_like(inputs[:, :1])], axis=1)
  return tf.matmul(inputs, features, transpose_a=True)


@pytest.mark.parametrize('name', small_models.IMAGES)
def test_inputs_and_gradients_explain_the_gradient_of_every_weight(name):
  shape = _SHAPES[name]
  spec = small_models.build(shape)
  weights, batch = (
    small_models.random_weights(spec),
    small_models.rows(shape, 4),
  )
  inputs, outputs = {}, {}
  with tf.GradientTape() as tape:
    tape.watch(weights)

    def tap(name, of_layer, preactivations):
      inputs[name], outputs[name] = of_layer, preactivations
      return preactivations

    logits = spec.tapped_logits(weights, batch['x'], tap)
    loss = tf.reduce_sum(tf.nn.log_softmax(logits)[:, 1])
  gradients, of_taps = tape.gradient(loss, (weights[0], outputs))
  gradients = map(tf.convert_to_tensor, gradients)
  named = dict(zip(weight_shapes(shape), gradients, strict=True))
  for layer in spec.layers:
    found = _explained(layer, inputs[layer.name], of_taps[layer.name])
    assert np.any(found != 0)
    np.testing.assert_allclose(
      found, matrix_of(layer, named), rtol=1e-4, atol=1e-5
    )
