"""A client's curvature against loops over rows, labels and weights."""

import math

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models import image_model_config
from models.layers import matrix_of
from models.model_shapes import weight_shapes
from tff_fedfish.methods.one_shot import curvature, kfac
from tff_fedfish.methods.one_shot.curvature_shapes import summary_specs

_SHAPES = small_models.SHAPES


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to trace."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


def _setting(name, num_rows=3):
  spec = small_models.build(_SHAPES[name])
  batch = small_models.rows(_SHAPES[name], num_rows)
  return spec, small_models.random_weights(spec), batch


def _summary(name, batch=None, *, num_rows=3, batch_size=2):
  spec, weights, rows = _setting(name, num_rows)
  found = small_models.run(
    lambda dataset: curvature.kfac_summary(spec, weights, dataset),
    batch or rows,
    batch_size,
  )
  return {key: value.numpy() for key, value in found.items()}


def _identity(unused_name, unused_inputs, preactivations):
  return preactivations


def _gradients_of_a_row(spec, weights, row, label):
  """Returns d log p(label) / d weights by the tape."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    logits = spec.tapped_logits(weights, row['x'], _identity)
    loss = tf.nn.log_softmax(logits)[0, label]
  return [
    tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, weights[0])
  ]


def _rows_of(batch):
  num_rows = len(batch['y'])
  return [
    tf.nest.map_structure(lambda t, row=row: t[row : row + 1], batch)
    for row in range(num_rows)
  ]


def _probabilities(spec, weights, row):
  return tf.nn.softmax(spec.tapped_logits(weights, row['x'], _identity)).numpy()


@pytest.mark.parametrize('name', ['linear', 'lenet', 'emnist_cnn', 'resnet18'])
def test_exact_diagonal_is_that_of_a_loop(name):
  spec, weights, batch = _setting(name)
  found = small_models.run(
    lambda dataset: curvature.diagonal_sums(spec, weights, dataset), batch, 2
  )
  expected = [np.zeros(w.shape) for w in weights[0]]
  for row in _rows_of(batch):
    p = _probabilities(spec, weights, row)
    for label in range(3):
      gradients = _gradients_of_a_row(spec, weights, row, label)
      for total, gradient in zip(expected, gradients, strict=True):
        total += p[0, label] * gradient.astype(np.float64) ** 2
  assert found.num_terms == 3
  for total, diagonal in zip(expected, found.squared_gradients, strict=True):
    assert np.any(total > 0)
    np.testing.assert_allclose(
      diagonal, total, rtol=1e-4, atol=1e-5 * np.max(total)
    )


@pytest.mark.parametrize(
  ('name', 'layer_name'), [('emnist_cnn', 'head'), ('lenet', 'hidden_1')]
)
def test_one_row_and_position_are_the_whole_fisher(name, layer_name):
  spec, weights, batch = _setting(name, 1)
  (layer,) = [y for y in spec.layers if y.name == layer_name]
  found = _summary(name, num_rows=1)
  p = _probabilities(spec, weights, batch)[0]
  size = min(layer.num_rows, 20)
  expected = 0
  for label in range(3):
    gradients = _gradients_of_a_row(spec, weights, batch, label)
    named = dict(zip(weight_shapes(_SHAPES[name]), gradients, strict=True))
    # The last rows, the bias among them: the whole is large.
    vector = matrix_of(layer, named)[-size:].ravel()
    expected += p[label] * np.outer(vector, vector)
  inputs = found[f'inputs/{layer_name}'][-size:, -size:]
  np.testing.assert_allclose(
    np.kron(inputs, found[f'gradients/{layer_name}']),
    expected,
    rtol=1e-3,
    atol=1e-5 * np.max(np.abs(expected)),
  )


def _loop_summary(spec, weights, batch):
  """Makes a summary row by row from the gradients at added offsets."""
  total = {
    name: np.zeros(sizes) for name, sizes in summary_specs(spec.layers).items()
  }
  for row in _rows_of(batch):
    inputs, shapes = {}, {}

    def see(name, of_layer, preactivations, inputs=inputs, shapes=shapes):
      inputs[name], shapes[name] = of_layer, preactivations.shape
      return preactivations

    logits = spec.tapped_logits(weights, row['x'], see)
    p = tf.nn.softmax(logits[0]).numpy()
    for label in range(3):
      offsets = {name: tf.zeros(shape) for name, shape in shapes.items()}
      with tf.GradientTape() as tape:
        tape.watch(offsets)
        moved = spec.tapped_logits(
          weights, row['x'], lambda name, a, z, o=offsets: z + o[name]
        )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits([label], moved)
        loss = tf.reduce_sum(math.sqrt(p[label]) * losses)
      gradients = tape.gradient(loss, offsets)
      for layer in spec.layers:
        a, g = inputs[layer.name], gradients[layer.name][0].numpy()
        if layer.window is not None:
          a = kfac.patches(a, **layer.window._asdict())
        g = g.reshape(-1, g.shape[-1])
        a = a.numpy()[0].reshape(len(g), -1)
        if layer.kind == 'scale':
          of_scale, of_bias = (a * g).sum(axis=0), g.sum(axis=0)
          total[f'diagonal/{layer.name}'] += np.stack([of_scale, of_bias]) ** 2
          continue
        if layer.bias is not None:
          a = np.hstack([a, np.ones([len(a), 1])])
        if label == 0:
          total[f'inputs/{layer.name}'] += a.T @ a
        total[f'gradients/{layer.name}'] += g.T @ g / len(g)
  return {name: values / len(batch['y']) for name, values in total.items()}


def _assert_summaries_agree(found, expected):
  assert list(found) == list(expected)
  for name, values in expected.items():
    np.testing.assert_allclose(
      found[name],
      values,
      rtol=1e-3,
      atol=1e-5 * np.max(np.abs(values)) + 1e-12,
      err_msg=name,
    )


@pytest.mark.parametrize(
  'name',
  [
    'lenet',
    'emnist_cnn',
    # `test_exact_diagonal_is_that_of_a_loop` has its layers, too.
    pytest.param('resnet18', marks=pytest.mark.slow),
  ],
)
def test_exact_summary_is_that_of_a_loop(name):
  spec, weights, batch = _setting(name)
  expected = _loop_summary(spec, weights, batch)
  _assert_summaries_agree(_summary(name), expected)


def test_batches_do_not_matter_to_exact_labels():
  _assert_summaries_agree(
    _summary('emnist_cnn', num_rows=5, batch_size=5),
    _summary('emnist_cnn', num_rows=5, batch_size=2),
  )


def test_no_rows_are_zeros():
  spec, weights, batch = _setting('emnist_cnn')
  empty = tf.nest.map_structure(lambda t: t[:0], batch)
  found = _summary('emnist_cnn', empty)
  specs = summary_specs(spec.layers)
  assert {key: value.shape for key, value in found.items()} == specs
  assert not any(np.any(values) for values in found.values())
  sums = small_models.run(
    lambda dataset: curvature.diagonal_sums(spec, weights, dataset), empty, 2
  )
  assert sums.num_terms == 0
  assert not any(np.any(diagonal) for diagonal in sums.squared_gradients)
