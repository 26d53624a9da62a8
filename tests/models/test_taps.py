"""Taps: same logits with and without, and the gradients that they explain."""

import dataclasses

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models import image_model_config, transformer
from models.image_classifier import IMAGE_CLASSIFIERS
from models.layers import matrix_of
from models.model_shapes import weight_shapes
from tff_fedfish.mathematics import kfac

_BFLOAT16 = dataclasses.replace(
  small_models.SHAPES['learned'], compute_dtype='bfloat16'
)
_SHAPES = {**small_models.SHAPES, 'bfloat16': _BFLOAT16}


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to trace."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


def _plain_logits(shape, weights, x):
  if isinstance(shape, image_model_config.ImageModelConfig):
    classifier = IMAGE_CLASSIFIERS[shape.name]
    logits = classifier.logits(weights, classifier.normalize(x['image']))
    return logits[:, np.newaxis]
  return transformer.logits(shape, weights, tf.constant(x[:, :-1]))


@pytest.mark.parametrize('name', _SHAPES)
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

  logits, is_real = spec.tapped_logits(weights, batch['x'], batch['y'], tap)
  expected = _plain_logits(shape, weights[0], batch['x'])
  np.testing.assert_array_equal(logits, expected)
  assert logits.dtype == is_real.dtype == tf.float32
  # Every layer once.
  assert len(seen) == len(set(seen))
  assert set(seen) == {layer.tap for layer in spec.layers}
  if name in small_models.IMAGES:
    np.testing.assert_array_equal(is_real, np.ones([4, 1]))
  else:
    # 5, 3, 0 and 1 targets.
    positions = np.arange(5) < np.array([[5], [3], [0], [1]])
    np.testing.assert_array_equal(is_real, positions)


def test_a_tap_decides_what_follows():
  shape = _SHAPES['lenet']
  spec = small_models.build(shape)
  batch = small_models.rows(shape, 2)

  def tap(name, inputs, preactivations):
    return 0 * preactivations if name == 'hidden_1' else preactivations

  weights = spec.draw_initial_weights()
  logits, _ = spec.tapped_logits(weights, batch['x'], batch['y'], tap)
  np.testing.assert_array_equal(logits, np.zeros([2, 1, 3]))


def _explained(layer, inputs, gradients):
  """Returns the gradient with respect to V from a tap."""
  if layer.columns:
    gradients = gradients[..., slice(*layer.columns)]
  if layer.kind == 'positions':
    return tf.reduce_sum(gradients, axis=0)
  features = tf.reshape(gradients, [-1, gradients.shape[-1]])
  if layer.kind == 'embedding':
    ids = tf.reshape(inputs, [-1])
    return tf.math.unsorted_segment_sum(features, ids, layer.fan_in)
  if layer.window is not None:
    inputs = kfac.patches(inputs, **layer.window._asdict())
  inputs = tf.reshape(inputs, [-1, inputs.shape[-1]])
  if layer.kind == 'scale':
    of_scale = tf.reduce_sum(inputs * features, axis=0)
    return tf.stack([of_scale, tf.reduce_sum(features, axis=0)])
  if layer.bias is not None:
    inputs = tf.concat([inputs, tf.ones_like(inputs[:, :1])], axis=1)
  return tf.matmul(inputs, features, transpose_a=True)


@pytest.mark.parametrize('name', small_models.SHAPES)
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

    logits, is_real = spec.tapped_logits(weights, batch['x'], batch['y'], tap)
    loss = tf.reduce_sum(tf.nn.log_softmax(logits)[..., 1] * is_real)
  gradients, of_taps = tape.gradient(loss, (weights[0], outputs))
  gradients = map(tf.convert_to_tensor, gradients)
  named = dict(zip(weight_shapes(shape), gradients, strict=True))
  found = {
    layer.name: _explained(layer, inputs[layer.tap], of_taps[layer.tap])
    for layer in spec.layers
  }
  for layer in spec.layers:
    if layer.kind == 'head':
      continue
    total = found[layer.name]
    if layer.kind == 'embedding':
      total += tf.transpose(found['head'])
    assert np.any(total != 0)
    np.testing.assert_allclose(
      total, matrix_of(layer, named), rtol=1e-4, atol=1e-5
    )
