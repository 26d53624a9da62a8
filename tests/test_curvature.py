"""A client's curvature against loops over rows, labels and weights."""

import math

import numpy as np
import pytest
import small_models
import tensorflow as tf

from models import image_model_config
from models.layers import matrix_of
from models.model_shapes import weight_shapes
from models.token_loss import draw_labels
from models.transformer_config import TransformerConfig
from tff_fedfish import curvature, fisher_diagonal
from tff_fedfish.curvature_shapes import summary_specs
from tff_fedfish.mathematics import kfac

_SHAPES = small_models.SHAPES
_SEED = (5, 6)


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to trace."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


def _setting(name, num_rows=3):
  spec = small_models.build(_SHAPES[name])
  batch = small_models.rows(_SHAPES[name], num_rows)
  return spec, small_models.random_weights(spec), batch


def _summary(name, batch=None, *, num_rows=3, batch_size=2, **options):
  spec, weights, rows = _setting(name, num_rows)
  found = small_models.run(
    lambda dataset: curvature.kfac_summary(spec, weights, dataset, **options),
    batch or rows,
    batch_size,
  )
  return {key: value.numpy() for key, value in found.items()}


def _identity(unused_name, unused_inputs, preactivations):
  return preactivations


def _gradients_of_a_row(spec, weights, row, labels):
  """Returns d sum_t log p(labels[t]) / d weights by the tape, flat by name."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    logits, is_real = spec.tapped_logits(weights, row['x'], row['y'], _identity)
    chosen = tf.one_hot(labels, logits.shape[-1])
    loss = tf.reduce_sum(
      tf.reduce_sum(tf.nn.log_softmax(logits) * chosen, axis=-1) * is_real
    )
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
  logits, _ = spec.tapped_logits(weights, row['x'], row['y'], _identity)
  return tf.nn.softmax(logits).numpy()


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
      gradients = _gradients_of_a_row(spec, weights, row, [[label]])
      for total, gradient in zip(expected, gradients, strict=True):
        total += p[0, 0, label] * gradient.astype(np.float64) ** 2
  assert found.num_terms == 3
  for total, diagonal in zip(expected, found.squared_gradients, strict=True):
    assert np.any(total > 0)
    np.testing.assert_allclose(
      diagonal, total, rtol=1e-4, atol=1e-5 * np.max(total)
    )


def test_drawn_labels_approach_the_exact_diagonal():
  num_repeats = 600
  spec, weights, batch = _setting('linear', 2)
  exact = small_models.run(
    lambda dataset: curvature.diagonal_sums(spec, weights, dataset), batch, 2
  )
  repeated = tf.nest.map_structure(
    lambda t: np.concatenate([t] * num_repeats), batch
  )
  seeds = np.arange(4 * num_repeats, dtype=np.int32)
  repeated['x']['noise_seed'] = seeds.reshape(-1, 2)
  drawn = small_models.run(
    lambda dataset: fisher_diagonal.estimate_fisher_sums(
      'true', None, spec.sampled_label_loss, *weights, dataset
    ),
    repeated,
    2,
  )
  for wanted, found in zip(
    exact.squared_gradients, drawn.squared_gradients, strict=True
  ):
    # Probabilities are about 0.3: the deviation of (1[y = c] - p[c])^2 is 0.87
    # of its mean. That of 600 is 0.036.
    np.testing.assert_allclose(found / num_repeats, wanted, rtol=4 * 0.036)
  # The same with factors: G of 1,200 labels, drawn in batches of two rows. An
  # entry's deviation is at most 0.18 / sqrt(1,200) = 0.0053.
  summary = {
    labels: small_models.run(
      lambda dataset, labels=labels: curvature.kfac_summary(
        spec, weights, dataset, labels=labels
      ),
      repeated,
      2,
    )
    for labels in curvature.LABELS
  }
  wanted, found = (summary[labels] for labels in curvature.LABELS)
  np.testing.assert_array_equal(wanted['inputs/head'], found['inputs/head'])
  g = wanted['gradients/head'].numpy()
  np.testing.assert_allclose(found['gradients/head'], g, atol=4 * 0.0053)
  assert np.any(found['gradients/head'] != g)


@pytest.mark.parametrize(
  ('name', 'layer_name'), [('emnist_cnn', 'head'), ('lenet', 'hidden_1')]
)
def test_one_row_and_position_are_the_whole_fisher(name, layer_name):
  spec, weights, batch = _setting(name, 1)
  (layer,) = [y for y in spec.layers if y.name == layer_name]
  found = _summary(name, num_rows=1, labels='exact')
  p = _probabilities(spec, weights, batch)[0, 0]
  size = min(layer.num_rows, 20)
  expected = 0
  for label in range(3):
    gradients = _gradients_of_a_row(spec, weights, batch, [[label]])
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


def test_value_layer_of_one_token_is_the_whole_fisher():
  # With one token attention is the identity: query and key have no gradient.
  shape = TransformerConfig(
    num_layers=1, width=4, num_heads=2, vocabulary_size=7, sequence_length=1
  )
  spec = small_models.build(shape)
  weights = small_models.random_weights(spec)
  batch = small_models.rows(shape, 1)
  batch['y'][:] = 1
  found = small_models.run(
    lambda dataset: curvature.kfac_summary(
      spec, weights, dataset, labels='drawn', seed=_SEED
    ),
    batch,
    1,
  )
  logits, _ = spec.tapped_logits(weights, batch['x'], batch['y'], _identity)
  seed = tf.random.experimental.stateless_fold_in(_SEED, -1)
  label = draw_labels(logits[0], seed)
  gradients = _gradients_of_a_row(spec, weights, batch, label[tf.newaxis])
  named = dict(zip(weight_shapes(shape), gradients, strict=True))
  layers = {layer.name: layer for layer in spec.layers}
  name = 'block/0/attention_input'
  for part in ('query', 'key', 'value'):
    vector = matrix_of(layers[f'{name}/{part}'], named).ravel()
    assert np.any(np.abs(vector) > 1e-6) == (part == 'value')
    factors = found[f'inputs/{name}'], found[f'gradients/{name}/{part}']
    np.testing.assert_allclose(
      np.kron(*factors), np.outer(vector, vector), rtol=1e-3, atol=1e-9
    )


def _loop_summary(spec, weights, batch, label_factors):
  """Makes a summary row by row from the gradients at added offsets.

  Args:
    spec: The model.
    weights: Its weights.
    batch: The rows.
    label_factors: (number of the row, logits of the row) -> labels of its
      positions and a factor of the gradients, for every backward pass.
  """
  total = {
    name: np.zeros(sizes) for name, sizes in summary_specs(spec.layers).items()
  }
  for row_num, row in enumerate(_rows_of(batch)):
    inputs, shapes = {}, {}

    def see(name, of_layer, preactivations, inputs=inputs, shapes=shapes):
      inputs[name], shapes[name] = of_layer, preactivations.shape
      return preactivations

    logits, is_real = spec.tapped_logits(weights, row['x'], row['y'], see)
    is_real = is_real[0].numpy().astype(bool)
    counted = set()
    for labels, factor in label_factors(row_num, logits[0]):
      offsets = {name: tf.zeros(shape) for name, shape in shapes.items()}
      with tf.GradientTape() as tape:
        tape.watch(offsets)
        moved, _ = spec.tapped_logits(
          weights, row['x'], row['y'], lambda name, a, z, o=offsets: z + o[name]
        )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
          labels, moved[0]
        )
        loss = tf.reduce_sum(factor * losses * is_real)
      gradients = tape.gradient(loss, offsets)
      for layer in spec.layers:
        a, g = inputs[layer.tap], gradients[layer.tap][0].numpy()
        if layer.window is not None:
          a = kfac.patches(a, **layer.window._asdict())
        g = g.reshape(-1, g.shape[-1])
        if layer.columns:
          g = g[:, slice(*layer.columns)]
        if layer.kind == 'positions':
          total[f'diagonal/{layer.name}'] += g**2
          continue
        a = a.numpy()[0] if layer.kind != 'embedding' else np.eye(11)[a[0]]
        a = a.reshape(len(g), -1)
        if layer.kind == 'scale':
          of_scale, of_bias = (a * g).sum(axis=0), g.sum(axis=0)
          total[f'diagonal/{layer.name}'] += np.stack([of_scale, of_bias]) ** 2
          continue
        if layer.bias is not None:
          a = np.hstack([a, np.ones([len(a), 1])])
        keep = np.broadcast_to(is_real, len(g))
        a, g = a[keep], g[keep]
        if layer.tap not in counted:
          of_inputs = a.T @ a
          if layer.kind == 'embedding':
            of_inputs = np.diag(of_inputs)
          total[f'inputs/{layer.tap}'] += of_inputs
          counted.add(layer.tap)
        of_gradients = g.T @ g / max(len(g), 1)
        if layer.kind == 'head':
          of_gradients = np.diag(of_gradients)
        total[f'gradients/{layer.name}'] += of_gradients
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
  def all_labels(unused_row_num, logits):
    p = tf.nn.softmax(logits[0]).numpy()
    return [([label], math.sqrt(p[label])) for label in range(3)]

  spec, weights, batch = _setting(name)
  expected = _loop_summary(spec, weights, batch, all_labels)
  _assert_summaries_agree(_summary(name, labels='exact'), expected)


@pytest.mark.parametrize('name', ['learned', 'rotary', 'emnist_cnn'])
def test_drawn_summary_is_that_of_a_loop(name):
  spec, weights, batch = _setting(name, 5)
  logits, _ = spec.tapped_logits(weights, batch['x'], batch['y'], _identity)
  flat = tf.reshape(logits, [5, -1, logits.shape[-1]])
  labels = []
  # Batches of 3 and 2 rows, each with its own seed.
  for step, rows in ((-1, flat[:3]), (-2, flat[3:])):
    seed = tf.random.experimental.stateless_fold_in(_SEED, step)
    drawn = draw_labels(tf.reshape(rows, [-1, rows.shape[-1]]), seed)
    labels += list(drawn.numpy().reshape(len(rows), -1))
  expected = _loop_summary(
    spec, weights, batch, lambda row, unused_logits: [(labels[row], 1.0)]
  )
  found = _summary(name, labels='drawn', seed=_SEED, batch_size=3, num_rows=5)
  _assert_summaries_agree(found, expected)


def test_drawn_summary_is_a_function_of_the_seed():
  found, again, other = (
    _summary('linear', labels='drawn', seed=seed)
    for seed in (_SEED, _SEED, (5, 7))
  )
  for name, values in found.items():
    np.testing.assert_array_equal(again[name], values)
  assert np.any(other['gradients/head'] != found['gradients/head'])


def test_without_a_seed_the_noise_of_the_batch_decides():
  _, _, batch = _setting('emnist_cnn', 4)
  found = _summary('emnist_cnn', batch, labels='drawn', batch_size=4)
  # The first row's seed, at the first step before local training.
  _assert_summaries_agree(
    found,
    _summary(
      'emnist_cnn',
      batch,
      labels='drawn',
      batch_size=4,
      seed=batch['x']['noise_seed'][0],
    ),
  )
  batch['x']['noise_seed'][0] += 1
  other = _summary('emnist_cnn', batch, labels='drawn', batch_size=4)
  assert np.any(other['gradients/head'] != found['gradients/head'])


@pytest.mark.parametrize('name', ['learned', 'rotary'])
def test_padding_changes_nothing(name):
  _, _, batch = _setting(name, 5)
  options = dict(labels='drawn', seed=_SEED)
  found = _summary(name, batch, **options)
  padding = np.arange(6) > batch['y'][:, np.newaxis]
  assert np.any(padding)
  batch['x'][padding] = (batch['x'][padding] + 3) % 11
  other = _summary(name, batch, **options)
  for key, values in found.items():
    np.testing.assert_array_equal(other[key], values)


def test_batches_do_not_matter_to_exact_labels():
  _assert_summaries_agree(
    _summary('emnist_cnn', num_rows=5, labels='exact', batch_size=5),
    _summary('emnist_cnn', num_rows=5, labels='exact', batch_size=2),
  )


@pytest.mark.parametrize('name', ['emnist_cnn', 'learned'])
def test_no_rows_are_zeros(name):
  spec, weights, batch = _setting(name)
  empty = tf.nest.map_structure(lambda t: t[:0], batch)
  found = _summary(name, empty, labels='drawn', seed=_SEED)
  specs = summary_specs(spec.layers)
  assert {key: value.shape for key, value in found.items()} == specs
  assert not any(np.any(values) for values in found.values())
  if name == 'learned':
    return
  sums = small_models.run(
    lambda dataset: curvature.diagonal_sums(spec, weights, dataset), empty, 2
  )
  assert sums.num_terms == 0
  assert not any(np.any(diagonal) for diagonal in sums.squared_gradients)


@pytest.mark.parametrize(
  ('name', 'options', 'words'),
  [
    (
      'linear',
      dict(labels='stored'),
      "`labels` must be one of exact, drawn, found 'stored'",
    ),
    (
      'learned',
      dict(labels='exact'),
      "`labels` must be 'drawn' for a language model, whose vocabulary is too "
      "large to sum over, found 'exact'",
    ),
    (
      'learned',
      dict(labels='drawn'),
      '`seed` must be given to draw labels for batches without noise seeds, '
      'found None',
    ),
  ],
)
def test_wrong_arguments(name, options, words):
  with pytest.raises(ValueError, match=words):
    _summary(name, **options)


def test_exact_diagonal_of_text_is_refused():
  spec, weights, batch = _setting('learned')
  with pytest.raises(ValueError, match="`labels` must be 'drawn' for a lang"):
    small_models.run(
      lambda dataset: curvature.diagonal_sums(spec, weights, dataset), batch, 2
    )
