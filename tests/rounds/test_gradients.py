"""Gradients of a batch; slices of it give what it gives whole."""

import collections

import linear_models
import numpy as np
import pytest
import tensorflow as tf

from models.functional_model import build_image_model, build_language_model
from models.image_model_config import ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.gradients import batch_gradients

# Real targets of a row; one has none, and slices differ in their number.
_NUM_TARGETS = (5, 1, 0, 4, 2, 5, 3)


def _text(batch_size):
  random = np.random.RandomState(3)
  count = len(_NUM_TARGETS)
  data = collections.OrderedDict(
    x=random.randint(11, size=(count, 6)).astype(np.int32),
    y=np.array(_NUM_TARGETS, np.int32),
  )
  return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)


@pytest.fixture(scope='module')
def model():
  config = TransformerConfig(
    num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=5
  )
  return build_language_model(config, model_seed=1).functional_model


@pytest.fixture(scope='module')
def weights(model):
  """Not near the initial ones, at which all gradients are small."""
  random = np.random.RandomState(5)
  return tuple(
    tf.constant(random.normal(scale=0.3, size=w.shape), tf.float32)
    for w in model.initial_weights[0]
  )


def _gradient_function(model, micro_batch_size, **options):
  """Returns (weights, batch) -> gradients."""

  @tf.function
  def run(weights, batch):
    return batch_gradients(
      model,
      weights,
      (),
      batch,
      training=True,
      micro_batch_size=micro_batch_size,
      **options,
    )

  return run


def _gradients(model, weights, batch, micro_batch_size, **options):
  return _gradient_function(model, micro_batch_size, **options)(weights, batch)


def _assert_close(found, expected):
  """Compares to 1e-6 of the largest entry of all tensors."""
  tf.nest.assert_same_structure(found, expected)
  found, expected = (
    np.concatenate([np.ravel(tensor) for tensor in tf.nest.flatten(each)])
    for each in (found, expected)
  )
  scale = np.max(np.abs(expected))
  assert scale > 1e-3
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * scale)


def test_sparse_gradients_are_summed_and_unused_weights_have_zeros():
  (batch,) = linear_models.batches([1, 1, 3], [2.0, 4.0, 3.0], 3)
  table, unused = _gradients(
    linear_models.table_model(4), (tf.zeros([4]), tf.ones([2])), batch, None
  ).data
  # Mean over 3: bin 1 (-2 - 4) / 3 = -2, bin 3 -1; others untouched.
  np.testing.assert_allclose(table, [0, -2, 0, -1], rtol=1e-6)
  np.testing.assert_array_equal(unused, [0, 0])


def test_slices_of_text(model, weights):
  (batch,) = _text(7)
  without = {**batch, 'y': tf.zeros_like(batch['y'])}
  sliced, whole = (
    _gradient_function(model, size, metrics=model.initialize_metrics_state())
    for size in (3, None)
  )
  found, expected = sliced(weights, batch), whole(weights, batch)
  _assert_close(found.data, expected.data)
  _assert_close(found.total, found.data)
  np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
  assert found.num_examples == 7
  metrics = model.finalize_metrics(found.metrics)
  for name, value in model.finalize_metrics(expected.metrics).items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-6)
  # A batch without targets.
  found = sliced(weights, without)
  assert found.loss == 0
  assert all(np.all(g.numpy() == 0) for g in found.data)


def test_rows_count_where_a_model_has_no_targets():
  # Residuals -1, -2 and -6 of y = 1, 2, 6 at theta = 0, x = 1: mean -3, and not
  # ((-1.5) + (-6)) / 2; the loss is (1 + 4 + 36) / 6.
  (batch,) = linear_models.batches([1.0] * 3, [1.0, 2.0, 6.0], 3)
  model = linear_models.scalar_model()
  found = _gradients(model, (tf.constant(0.0),), batch, 2)
  np.testing.assert_allclose(found.total[0], -3.0, rtol=1e-6)
  np.testing.assert_allclose(found.loss, 41 / 6, rtol=1e-6)
  assert (found.num_examples, found.metrics) == (3, None)


@pytest.mark.parametrize('micro_batch_size', [1, 2, 9, None])
def test_extra_loss_is_in_the_total_only(micro_batch_size):
  # As above at theta 1: data gradient 1 - 3 = -2; that of the extra loss
  # mean(y) theta^2 / 2 + theta is 3 + 1.
  (batch,) = linear_models.batches([1.0] * 3, [1.0, 2.0, 6.0], 3)
  found = _gradients(
    linear_models.scalar_model(),
    (tf.constant(1.0),),
    batch,
    micro_batch_size,
    extra_loss=lambda weights, batch, output: (
      tf.reduce_mean(batch['y']) * weights[0] ** 2 / 2 + weights[0]
    ),
  )
  np.testing.assert_allclose(found.data[0], -2.0, rtol=1e-6)
  np.testing.assert_allclose(found.total[0], 2.0, rtol=1e-6)


def _trained(model, weights, dataset, micro_batch_size):
  optimizer = linear_models.sgd(0.1)
  observer = local_training.GradientObserver(
    tf.nest.map_structure(tf.zeros_like, weights),
    lambda sums, gradients, num_rows: tf.nest.map_structure(
      lambda s, g: s + g**2, sums, gradients
    ),
  )

  @tf.function
  def run(dataset):
    result = local_training.train(
      model,
      optimizer,
      optimizer.initialize(()),
      weights,
      (),
      dataset,
      num_local_epochs=2,
      micro_batch_size=micro_batch_size,
      observer=observer,
    )
    return result.trainable, result.gradient_sums

  return run, run(dataset)


def test_training_by_slices():
  # Slices of 3 of batches of 4 and 3 are unlike each other.
  model, weights = linear_models.linear_model(2), (tf.ones([2]), tf.zeros([]))
  dataset = linear_models.batches(*linear_models.three_clients()[1], 4)
  run, found = _trained(model, weights, dataset, 3)
  _, expected = _trained(model, weights, dataset, None)
  for one, other in zip(found, expected, strict=True):
    _assert_close(one, other)
  graph = run.get_concrete_function(dataset).graph.as_graph_def()
  loops = [
    node.attr['parallel_iterations'].i
    for nodes in (graph.node, *(f.node_def for f in graph.library.function))
    for node in nodes
    if node.op in ('While', 'StatelessWhile')
  ]
  # Of the first and of the observed epoch, and of the slices in each: one after
  # the other.
  assert loops == [1] * 4


def test_noise_is_that_of_a_slices_own_rows():
  spec = build_image_model(
    ImageModelConfig(name='emnist_cnn', num_classes=5, image_shape=(8, 7, 1)),
    model_seed=1,
  )
  random = np.random.RandomState(2)
  rows = collections.OrderedDict(
    x=collections.OrderedDict(
      image=random.randint(256, size=(4, 8, 7, 1)).astype(np.uint8),
      noise_seed=random.randint(2**31, size=(4, 2)).astype(np.int32),
    ),
    y=random.randint(5, size=4).astype(np.int32),
  )
  weights = spec.draw_initial_weights()[0]

  def of(start, stop, micro_batch_size=None):
    part = tf.nest.map_structure(lambda t: tf.constant(t[start:stop]), rows)
    return _gradients(
      spec.functional_model,
      weights,
      part,
      micro_batch_size,
      prepare=lambda batch: local_training.at_step(batch, tf.constant(1)),
    ).total

  # The gradient of 4 rows is the mean of those of 2 and 2, each with the seed
  # of its first row.
  expected = [(a + b) / 2 for a, b in zip(of(0, 2), of(2, 4), strict=True)]
  _assert_close(list(of(0, 4, 2)), expected)
