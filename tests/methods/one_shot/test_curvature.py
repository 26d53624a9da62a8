"""Summaries by hand, and against loops over rows, labels and weights."""

import math

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models import taps
from models.image_model_config import ImageModelConfig
from models.layers import layers_of
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot import curvature
from tff_fedfish.methods.one_shot.uploads import UploadKind, summary_shapes

pytestmark = pytest.mark.usefixtures('two_blocks')

_SHAPES = small_models.SHAPES


def _setting(name, num_rows=3):
  spec = small_models.build(_SHAPES[name])
  weights, _ = small_models.random_weights(spec)
  return spec, weights, small_models.rows(_SHAPES[name], num_rows)


def _summary(name, summary, batch=None, *, num_rows=3, batch_size=2):
  spec, weights, rows = _setting(name, num_rows)
  found = small_models.run(
    lambda dataset: getattr(curvature, summary)(spec, weights, dataset),
    rows if batch is None else batch,
    batch_size,
  )
  return {key: value.numpy() for key, value in found.items()}


def _identity(unused_name, unused_inputs, preactivations):
  return preactivations


def _rows_of(batch):
  for row in range(len(batch['y'])):
    yield tf.nest.map_structure(lambda t, row=row: t[row : row + 1], batch)


class _Spec:
  """A linear model of two inputs, W = ((1, 0), (0, 0)) and b = 0."""

  shape = ImageModelConfig(name='linear', num_classes=2, image_shape=(2, 1, 1))
  layers = layers_of(shape)

  def tapped_logits(self, weights, x, tap):
    (kernel, bias), _ = weights
    return tap('head', x, tf.matmul(x, kernel) + bias)


def test_vector_v12():
  # Rows (1, 2) and (0, 1): p is (e, 1) / (e + 1) and (1, 1) / 2, and p1 p2 is
  # 0.1966119332 and 0.25, so G = 0.2233059666 ((1, -1), (-1, 1)).
  spec, weights = _Spec(), (tf.constant([[1.0, 0], [0, 0]]), tf.zeros([2]))
  batch = dict(x=np.float32([[1, 2], [0, 1]]), y=np.int32([0, 0]))
  found, diagonal = (
    small_models.run(lambda d, f=f: f(spec, weights, d), batch, 1)
    for f in (curvature.kfac, curvature.diagonal)
  )
  a, g = found['inputs/head'], found['gradients/head']
  # Means of 1, 0; 2, 0; 1, 0; 4, 1; 2, 1; 1, 1.
  np.testing.assert_allclose(a, [[0.5, 1, 0.5], [1, 2.5, 1.5], [0.5, 1.5, 1]])
  expected = 0.2233059666 * np.array([[1, -1], [-1, 1]])
  np.testing.assert_allclose(g, expected, rtol=1e-6)
  matrix = np.float32([[1, -1], [2, 0], [0.5, 0.5]])
  # Of two clients that are alike.
  both = {key: tf.stack([value, value]) for key, value in found.items()}
  product = curvature.layer_product(spec.layers[0], both, tf.constant(matrix))
  # A V = ((2.75, -0.25), (6.75, -0.25), (4, 0)); differences of its columns
  # 3, 7 and 4, times 0.2233059666.
  expected = 2 * np.array([0.6699178999, 1.5631417663, 0.8932238665])
  np.testing.assert_allclose(product[:, 0], expected, rtol=1e-6)
  np.testing.assert_allclose(product[:, 1], -expected, rtol=1e-6)
  # The exact diagonal is not that of the factors, 0.1116529833 and so on.
  kernel, bias = diagonal.values()
  expected = [[0.0983059666] * 2, [0.5182238665] * 2]
  np.testing.assert_allclose(kernel, expected, rtol=1e-6)
  np.testing.assert_allclose(bias, [0.2233059666] * 2, rtol=1e-6)


@pytest.mark.parametrize(
  'name',
  ['emnist_cnn', pytest.param('resnet18', marks=pytest.mark.slow)],
)
def test_exact_diagonal_is_that_of_a_loop(name):
  spec, weights, batch = _setting(name)
  expected = [np.zeros(w.shape) for w in weights]
  for row in _rows_of(batch):
    for label in range(3):
      with tf.GradientTape() as tape:
        tape.watch(weights)
        logits = spec.tapped_logits((weights, ()), row['x'], _identity)
        loss = tf.nn.log_softmax(logits)[0, label]
      p = tf.nn.softmax(logits).numpy()[0, label]
      for total, gradient in zip(
        expected, tape.gradient(loss, weights), strict=True
      ):
        total += p * np.float64(tf.convert_to_tensor(gradient)) ** 2 / 3
  found = _summary(name, 'diagonal').values()
  for total, diagonal in zip(expected, found, strict=True):
    assert np.any(total > 0)
    np.testing.assert_allclose(
      diagonal, total, rtol=1e-4, atol=1e-5 * np.max(total)
    )


def test_the_diagonal_of_text_is_the_empirical_one():
  # Rows with 3, 0 and 2 targets, in batches of two and of one.
  shape = TransformerConfig(
    num_layers=1, width=4, num_heads=1, vocabulary_size=5, sequence_length=3
  )
  spec = small_models.build(shape)
  weights, _ = small_models.random_weights(spec)
  tokens = np.random.RandomState(0).randint(5, size=(3, 4))
  batch = dict(x=tokens.astype(np.int32), y=np.int32([3, 0, 2]))
  found = small_models.run(
    lambda dataset: curvature.diagonal(spec, weights, dataset), batch, 2
  )

  @tf.function
  def squares(tokens, num_targets):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      losses = spec.functional_model.predict_on_batch(
        (weights, ()), tokens, False
      )['token_loss']
      # The log probability of the row's targets.
      loss = tf.reduce_sum(losses[0, :num_targets])
    return [
      tf.square(tf.convert_to_tensor(g)) for g in tape.gradient(loss, weights)
    ]

  rows = [
    squares(batch['x'][row : row + 1], tf.constant(batch['y'][row]))
    for row in range(3)
  ]
  for diagonal, *terms in zip(found.values(), *rows, strict=True):
    total = sum(terms) / 3
    np.testing.assert_allclose(
      diagonal, total, rtol=1e-3, atol=1e-5 * np.max(total)
    )


def _loop_summary(spec, weights, batch):
  """Makes a K-FAC summary row by row from the gradients at added offsets."""
  total = {}
  for row in _rows_of(batch):
    inputs, shapes = {}, {}

    def see(name, of_layer, preactivations, inputs=inputs, shapes=shapes):
      inputs[name], shapes[name] = of_layer, preactivations.shape
      return preactivations

    logits = spec.tapped_logits((weights, ()), row['x'], see)
    p = tf.nn.softmax(logits[0]).numpy()
    for label in range(3):
      offsets = {name: tf.zeros(shape) for name, shape in shapes.items()}
      with tf.GradientTape() as tape:
        tape.watch(offsets)
        moved = spec.tapped_logits(
          (weights, ()), row['x'], lambda name, a, z, o=offsets: z + o[name]
        )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits([label], moved)
        loss = tf.reduce_sum(math.sqrt(p[label]) * losses)
      gradients = tape.gradient(loss, offsets)
      for layer in spec.layers:
        g = gradients[layer.name][0].numpy()
        g = g.reshape(-1, g.shape[-1])
        a = taps.inputs_by_position(layer, inputs[layer.name])[0].numpy()
        if layer.kind == 'scale':
          of_both = np.stack([(a * g).sum(axis=0), g.sum(axis=0)])
          terms = {f'diagonal/{layer.name}': of_both**2}
        else:
          ones = np.ones([len(a), int(layer.bias is not None)])
          a = np.hstack([a, ones])
          terms = {f'gradients/{layer.name}': g.T @ g / len(g)}
          if label == 0:
            terms[f'inputs/{layer.name}'] = a.T @ a
        for name, term in terms.items():
          total[name] = total.get(name, 0) + term / len(batch['y'])
  return total


def _assert_agree(found, expected):
  assert set(found) == set(expected)
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
  ['emnist_cnn', pytest.param('resnet18', marks=pytest.mark.slow)],
)
def test_factors_are_those_of_a_loop(name):
  _assert_agree(_summary(name, 'kfac'), _loop_summary(*_setting(name)))


def test_gram_matrices_are_input_factors_without_bias():
  found = _summary('emnist_cnn', 'gram')
  factors = _summary('emnist_cnn', 'kfac')
  for name, matrix in found.items():
    whole = factors[name.replace('gram', 'inputs')]
    np.testing.assert_allclose(matrix, whole[:-1, :-1], rtol=1e-5)


@pytest.mark.parametrize('summary', ['kfac', 'diagonal', 'gram'])
def test_batches_do_not_matter_and_no_rows_are_zeros(summary):
  _assert_agree(
    _summary('emnist_cnn', summary, num_rows=5, batch_size=5),
    _summary('emnist_cnn', summary, num_rows=5, batch_size=2),
  )
  batch = small_models.rows(_SHAPES['emnist_cnn'], 3)
  empty = tf.nest.map_structure(lambda t: t[:0], batch)
  found = _summary('emnist_cnn', summary, empty)
  shapes = summary_shapes(_SHAPES['emnist_cnn'], UploadKind(summary))
  assert {key: value.shape for key, value in found.items()} == shapes
  assert not any(np.any(values) for values in found.values())


@pytest.mark.parametrize('kind', ['scale', 'convolution'])
def test_products_are_those_with_the_whole_matrices(kind):
  layer = [x for x in layers_of(_SHAPES['resnet18']) if x.kind == kind][0]
  rows, columns = layer.num_rows, layer.fan_out
  random = np.random.RandomState(0)
  a, g, v = (
    random.normal(size=size)
    for size in ((rows, rows), (columns, columns), (rows, columns))
  )
  summary, whole = {'inputs': a, 'gradients': g}, np.kron(a, g.T)
  if kind == 'scale':
    summary, whole = {'diagonal': v + 1}, np.diag((v + 1).ravel())
  # Two clients, in the type of v.
  both = {
    f'{key}/{layer.name}': np.stack([tensor, tensor])
    for key, tensor in summary.items()
  }
  found = curvature.layer_product(layer, both, v)
  expected = 2 * (whole @ v.ravel()).reshape(v.shape)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
