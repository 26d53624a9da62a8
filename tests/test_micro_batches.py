"""Batches that are taken in slices give what whole ones give."""

import collections

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import build_image_model, build_language_model
from models.image_model_config import ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.fed_fish import process
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.gradients import batch_gradients

_CONFIG = TransformerConfig(
  num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=5
)
# Real targets of a row; one has none, and slices differ in their number.
_NUM_TARGETS = (5, 1, 0, 4, 2, 5, 3)
_ESTIMATORS = ('extra_pass', 'last_epoch')


def _text(batch_size):
  random = np.random.RandomState(3)
  count = len(_NUM_TARGETS)
  data = collections.OrderedDict(
    x=random.randint(11, size=(count, 6)).astype(np.int32),
    y=np.array(_NUM_TARGETS, np.int32),
  )
  return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)


@pytest.fixture(scope='module')
def spec():
  return build_language_model(_CONFIG, model_seed=1)


@pytest.fixture(scope='module')
def weights(spec):
  """Not near the initial ones, at which all gradients are small."""
  random = np.random.RandomState(5)
  return tuple(
    tf.constant(w + random.normal(scale=0.3, size=w.shape), tf.float32)
    for w in spec.draw_initial_weights()[0]
  )


def _train(model, weights, dataset, micro_batch_size, **options):
  """Two local epochs of SGD with momentum; returns what they leave behind."""
  optimizer = tff.learning.optimizers.build_sgdm(0.1, momentum=0.5)
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )
  return local_training.train(
    model,
    optimizer,
    hparams,
    weights,
    (),
    dataset,
    num_local_epochs=2,
    micro_batch_size=micro_batch_size,
    observer=local_training.GradientObserver(
      process.no_squares(weights),
      lambda sums, gradients, _: process.add_squares(sums, gradients),
    ),
    **options,
  )


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


@pytest.mark.parametrize('micro_batch_size', [1, 2, 3, 4, 9])
def test_gradients_loss_and_metrics(spec, weights, micro_batch_size):
  model = spec.functional_model
  (batch,) = _text(7)

  @tf.function
  def run(micro_batch_size):
    found = batch_gradients(
      model,
      weights,
      (),
      batch,
      model.initialize_metrics_state(),
      training=True,
      micro_batch_size=micro_batch_size,
    )
    return found._replace(metrics=model.finalize_metrics(found.metrics))

  found, expected = run(micro_batch_size), run(None)
  _assert_close(found.data, expected.data)
  _assert_close(found.total, found.data)
  np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
  assert found.num_examples == 7
  for name, value in expected.metrics.items():
    np.testing.assert_allclose(found.metrics[name], value, rtol=1e-6)


@pytest.fixture(scope='module')
def whole(spec, weights):
  return _all_fishers(spec, weights, None)


def _all_fishers(spec, weights, micro_batch_size):
  model, dataset = spec.functional_model, _text(4)

  @tf.function
  def run():
    local = _train(model, weights, dataset, micro_batch_size)
    sums = {
      'extra_pass': process.squared_gradients(
        model, (local.trainable, ()), local.dataset, micro_batch_size
      ),
      'last_epoch': local.observation,
    }
    loss = model.finalize_metrics(local.metrics)['loss']
    return sums, local.trainable, loss, local.mean_loss

  return run()


@pytest.mark.parametrize(
  # Slices of 3 are unlike each other.
  'micro_batch_size',
  [pytest.param(1, marks=pytest.mark.slow), 3],
)
def test_training_and_all_estimators(spec, weights, whole, micro_batch_size):
  fishers, trainable, loss, mean_loss = _all_fishers(
    spec, weights, micro_batch_size
  )
  for estimator in _ESTIMATORS:
    found, expected = fishers[estimator], whole[0][estimator]
    _assert_close(found.sums, expected.sums)
    assert found.num_batches == expected.num_batches
  _assert_close(trainable, whole[1])
  np.testing.assert_allclose([loss, mean_loss], whole[2:], rtol=1e-6)


def test_slices_run_one_after_the_other(spec, weights):
  @tf.function
  def run(dataset):
    return _train(spec.functional_model, weights, dataset, 2).trainable

  graph = run.get_concrete_function(_text(4)).graph.as_graph_def()
  loops = [
    node.attr['parallel_iterations'].i
    for nodes in (graph.node, *(f.node_def for f in graph.library.function))
    for node in nodes
    if node.op in ('While', 'StatelessWhile')
  ]
  # Of the first and of the observed epoch, and of the slices in each. The model
  # has none of its own.
  assert loops == [1] * 4


def test_rows_count_where_a_model_has_no_targets():
  # Residuals -1, -2 and -6 of y = 1, 2, 6 at theta = 0, x = 1: mean -3, and not
  # ((-1.5) + (-6)) / 2; the loss is (1 + 4 + 36) / 6.
  (batch,) = linear_models.batches([1.0] * 3, [1.0, 2.0, 6.0], 3)

  @tf.function
  def run():
    return batch_gradients(
      linear_models.scalar_model(),
      (tf.constant(0.0),),
      (),
      batch,
      training=True,
      micro_batch_size=2,
    )

  found = run()
  np.testing.assert_allclose(found.total[0], -3.0, rtol=1e-6)
  np.testing.assert_allclose(found.loss, 41 / 6, rtol=1e-6)
  assert (found.num_examples, found.metrics) == (3, None)


@pytest.mark.parametrize('micro_batch_size', [1, 2, None])
def test_extra_loss_and_observer(micro_batch_size):
  # Of the batch y = 1, 2, 6 at theta = 0: the data gradient is -3, that of the
  # extra loss mean(y) theta^2 / 2 + theta, taken from every slice, is 1:
  # theta = 0 - 0.1 (-3 + 1) = 0.2, and in the second epoch -2.8 and 3 * 0.2 + 1
  # with momentum: velocity 0.5 * -2 + (-2.8 + 1.6) = -2.2; 0.2 + 0.22 = 0.42.
  @tf.function
  def run():
    return _train(
      linear_models.scalar_model(),
      (tf.constant(0.0),),
      linear_models.batches([1.0] * 3, [1.0, 2.0, 6.0], 3),
      micro_batch_size,
      extra_loss=lambda weights, batch, output: (
        tf.reduce_mean(batch['y']) * weights[0] ** 2 / 2 + weights[0]
      ),
    )

  result = run()
  np.testing.assert_allclose(result.trainable[0], 0.42, rtol=1e-5)
  np.testing.assert_allclose(result.observation.sums[0], 2.8**2, rtol=1e-6)


def test_batch_without_targets(spec, weights):
  (batch,) = _text(7).map(
    lambda batch: {'x': batch['x'], 'y': tf.zeros_like(batch['y'])}
  )

  @tf.function
  def run():
    return batch_gradients(
      spec.functional_model,
      weights,
      (),
      batch,
      training=True,
      micro_batch_size=3,
    )

  found = run()
  assert found.loss == 0
  assert all(np.all(g.numpy() == 0) for g in found.data)


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
  optimizer = linear_models.sgd(1.0)

  @tf.function
  def delta(dataset, micro_batch_size):
    local = local_training.train(
      spec.functional_model,
      optimizer,
      optimizer.initialize(()),
      weights,
      (),
      dataset,
      num_local_epochs=1,
      micro_batch_size=micro_batch_size,
    )
    return tf.nest.map_structure(tf.subtract, weights, local.trainable)

  def of(start, stop, micro_batch_size=None):
    part = tf.nest.map_structure(lambda t: t[start:stop], rows)
    dataset = tf.data.Dataset.from_tensors(part)
    return delta(dataset, micro_batch_size)

  # The gradient of 4 rows is the mean of those of 2 and 2, each with the seed
  # of its first row.
  expected = [(a + b) / 2 for a, b in zip(of(0, 2), of(2, 4), strict=True)]
  _assert_close(list(of(0, 4, 2)), expected)
