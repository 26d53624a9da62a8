"""Models that are linear in their weights, beside what they linearize."""

import dataclasses

import numpy as np
import pytest
import small_models
import tensorflow as tf
import tensorflow_federated as tff

from models import image_model_config, linearized
from models.layers import weight_names
from models.model_shapes import weight_shapes
from tff_fedfish import local_training, tangent_features
from tff_fedfish.algorithms.fed_avg import build_fed_avg
from tff_fedfish.batch_gradients import batch_gradients

_LEARNED = small_models.SHAPES['learned']
_LOOPS = ('unrolled', 'foldl')
_SHAPES = {
  name: small_models.SHAPES[name]
  for name in ('linear', 'lenet', 'emnist_cnn', 'resnet18')
} | {loop: dataclasses.replace(_LEARNED, layer_loop=loop) for loop in _LOOPS}
# `test_both_layer_loops_agree` stays.
_NAMES = [
  pytest.param(name, marks=[pytest.mark.slow] * (name == 'foldl'))
  for name in _SHAPES
]


@pytest.fixture(autouse=True)
def two_blocks(monkeypatch):
  """Cuts the ResNet to two blocks: eight take long to trace."""
  monkeypatch.setattr(image_model_config, '_RESNET_STAGES', ((32, 1), (64, 2)))
  monkeypatch.setattr(image_model_config, '_RESNET_BLOCKS_PER_STAGE', 1)


class _Case:
  """A model and its linearization with weights, a direction and a batch."""

  def __init__(self, name, mask_layers=None):
    shape = _SHAPES[name]
    self.model = small_models.build(shape)
    self.theta, _ = small_models.random_weights(self.model)
    self.spec = linearized.build_full_linearization(
      self.model, mask_layers=mask_layers
    )
    self.batch = small_models.rows(shape, 4)

  def direction(self, seed):
    random = np.random.RandomState(seed)
    return tuple(
      tf.constant(random.normal(size=w.shape), tf.float32) for w in self.theta
    )

  def logits(self, weights, batch=None):
    x, y = (batch or self.batch).values()
    return self.model.tapped_logits((weights, ()), x, y, None)[0]

  def product(self, direction):
    """Returns J delta, from logits at theta and at theta + delta."""
    logits = linearized._linearized_logits(self.logits, self.theta, direction)
    return logits - self.logits(self.theta)

  def loss(self, delta):
    functional = self.spec.functional_model
    x, y = self.batch.values()
    output = functional.predict_on_batch((delta, self.theta), x, True)
    return functional.loss(output, y)

  def gradient(self, delta):
    return batch_gradients(
      self.spec.functional_model, delta, self.theta, self.batch, training=True
    ).total


def _plus(first, factor, second):
  return tuple(a + factor * b for a, b in zip(first, second, strict=True))


def _dot(first, second):
  return sum(
    float(np.vdot(np.float64(a), np.float64(b)))
    for a, b in zip(first, second, strict=True)
  )


@pytest.mark.parametrize('name', _NAMES)
def test_at_0_it_is_the_model(name):
  case = _Case(name)
  zero, theta = case.spec.draw_initial_weights()
  for drawn, initial in zip(
    theta, case.model.draw_initial_weights()[0], strict=True
  ):
    np.testing.assert_array_equal(drawn, initial)
  case.theta = theta
  found = linearized._linearized_logits(case.logits, theta, zero)
  np.testing.assert_array_equal(found, case.logits(theta))
  # Loss and gradient, too.
  original = batch_gradients(
    case.model.functional_model, theta, (), case.batch, training=False
  )
  np.testing.assert_allclose(case.loss(zero), original.loss, rtol=1e-6)
  for found, expected in zip(case.gradient(zero), original.total, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('name', _NAMES)
def test_product_is_linear_and_the_transposed_gradient(name):
  case = _Case(name)
  u, v = case.direction(1), case.direction(2)
  of_u, of_v = case.product(u), case.product(v)
  tolerance = 1e-5 * np.abs(of_u).max()
  scaled = tuple(2.0 * tensor for tensor in u)
  np.testing.assert_allclose(
    case.product(_plus(scaled, -3.0, v)),
    2 * of_u - 3 * of_v,
    atol=9 * tolerance,
  )
  # g (J u) = (g J) u, the latter by the ordinary gradient.
  with tf.GradientTape() as tape:
    tape.watch(case.theta)
    logits = case.logits(case.theta)
  g = np.random.RandomState(3).normal(size=logits.shape).astype(np.float32)
  gradient = tape.gradient(logits, case.theta, output_gradients=g)
  np.testing.assert_allclose(
    np.vdot(g, of_u), _dot(map(tf.convert_to_tensor, gradient), u), rtol=1e-4
  )


@pytest.mark.parametrize('name', ['linear', *_LOOPS])
def test_product_is_that_of_finite_differences(name):
  case, step = _Case(name), 1e-3
  u = case.direction(1)
  above, below = (
    case.logits(_plus(case.theta, sign * step, u)) for sign in (1, -1)
  )
  expected = (above - below) / (2 * step)
  np.testing.assert_allclose(
    case.product(u), expected, atol=0.01 * np.abs(expected).max()
  )


@pytest.mark.parametrize('name', _NAMES)
def test_gradient_is_that_of_the_loss_away_from_0(name):
  case = _Case(name)
  delta, direction = (
    tuple(0.1 * tensor for tensor in case.direction(seed)) for seed in (3, 4)
  )
  # The loss as a function of the step along the direction, a scalar: its
  # derivative by central differences.
  step = 1e-2
  above, below = (
    float(case.loss(_plus(delta, sign * step, direction))) for sign in (1, -1)
  )
  expected = (above - below) / (2 * step)
  found = _dot(case.gradient(delta), direction)
  np.testing.assert_allclose(found, expected, rtol=0.02, atol=1e-3)
  # The gradient at 0 would not do.
  zero, _ = case.spec.draw_initial_weights()
  assert abs(_dot(case.gradient(zero), direction) - expected) > 5e-3


@pytest.mark.parametrize('name', ['lenet', *_LOOPS])
def test_loss_is_convex_along_segments(name):
  case = _Case(name)
  u, v = case.direction(5), case.direction(6)
  points = np.linspace(-1, 1, 9)
  losses = np.array([float(case.loss(_plus(u, point, v))) for point in points])
  second_differences = losses[:-2] - 2 * losses[1:-1] + losses[2:]
  assert np.all(second_differences > -1e-4)
  assert second_differences.max() > 1e-2


def test_both_layer_loops_agree():
  cases = [_Case(loop) for loop in _LOOPS]
  delta = cases[0].direction(7)
  unrolled, folded = (case.product(delta) for case in cases)
  np.testing.assert_allclose(unrolled, folded, rtol=1e-3, atol=1e-4)
  for one, other in zip(*(c.gradient(delta) for c in cases), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_only_the_last_blocks_change():
  case, whole = _Case('unrolled', mask_layers=1), _Case('unrolled')
  delta = case.direction(8)
  only_last = []
  for name, tensor in zip(weight_names(case.model.layers), delta, strict=True):
    values = np.zeros(tensor.shape, np.float32)
    if name.startswith('block/'):
      values[-1] = tensor[-1]
    only_last.append(tf.constant(values))
  np.testing.assert_allclose(
    case.loss(delta), whole.loss(tuple(only_last)), rtol=1e-5
  )
  gradients = case.gradient(delta)
  expected = whole.gradient(tuple(only_last))
  for found, of_whole, values in zip(
    gradients, expected, only_last, strict=True
  ):
    is_open = values != 0
    assert not np.any(found[~is_open])
    np.testing.assert_allclose(
      found[is_open], of_whole[is_open], rtol=1e-4, atol=1e-6
    )
  assert any(np.any(g) for g in gradients)


def test_all_blocks_leave_out_what_is_in_none():
  case = _Case('foldl', mask_layers=2)
  gradients = case.gradient(case.direction(9))
  for name, gradient in zip(weight_shapes(_LEARNED), gradients, strict=True):
    assert np.any(gradient) == name.startswith('block/'), name


@pytest.mark.parametrize(
  ('name', 'mask_layers', 'words'),
  [
    ('unrolled', 0, "from 1 to the model's 2 blocks, or None, found 0"),
    ('foldl', 3, "from 1 to the model's 2 blocks, or None, found 3"),
    ('lenet', 1, "from 1 to the model's 0 blocks, or None, found 1"),
  ],
)
def test_blocks_that_are_not_there(name, mask_layers, words):
  with pytest.raises(ValueError, match=f'`mask_layers` must be {words}'):
    _Case(name, mask_layers)


def test_micro_batches_make_the_same_gradient():
  case = _Case('lenet')
  delta = case.direction(10)
  batch = tf.nest.map_structure(tf.constant, case.batch)

  @tf.function
  def gradient(micro_batch_size):
    return batch_gradients(
      case.spec.functional_model,
      delta,
      case.theta,
      batch,
      training=True,
      micro_batch_size=micro_batch_size,
    ).total

  for one, other in zip(gradient(None), gradient(3), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class _Features:
  """A feature classifier of a model with its parts."""

  def __init__(self, name, num_features=40):
    shape = small_models.SHAPES[name]
    self.model = small_models.build(shape)
    mask = tangent_features.feature_mask(
      shape, num_features=num_features, model_seed=1
    )
    self.features = tangent_features.build_features(self.model, shape, mask)
    self.spec = linearized.build_feature_classifier(
      self.model,
      self.features,
      num_features=len(mask),
      num_classes=shape.num_classes,
    )
    self.batch = small_models.rows(shape, 5)
    self.theta, _ = small_models.random_weights(self.model)


@pytest.mark.parametrize('name', small_models.IMAGES)
def test_scores_of_features(name):
  case = _Features(name)
  z = case.features(case.theta, case.batch).numpy()
  random = np.random.RandomState(3)
  mean, std = z.mean(axis=0), 0.5 + np.abs(z).max(axis=0)
  kernel = random.normal(size=[z.shape[1], 3]).astype(np.float32)
  bias = np.float32([1.0, -2.0, 0.5])
  weights = (kernel, bias), (*case.theta, mean, std)
  functional = case.spec.functional_model
  found = functional.predict_on_batch(weights, case.batch['x'], True)
  expected = (z - mean) / std @ kernel + bias
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
  dataset = tf.data.Dataset.from_tensor_slices(case.batch).batch(2)
  metrics = tf.function(
    lambda trainable, fixed: functional.finalize_metrics(
      local_training.evaluate(functional, trainable, fixed, dataset)
    )
  )(*weights)
  hits = np.argmax(expected, axis=1) == case.batch['y']
  np.testing.assert_allclose(metrics['accuracy'], hits.mean(), rtol=1e-6)
  assert metrics['num_tokens'] == 5
  losses = (
    np.log(np.exp(expected).sum(axis=1))
    - expected[np.arange(5), case.batch['y']]
  )
  np.testing.assert_allclose(metrics['loss'], losses.mean(), rtol=1e-4)


def test_initial_classifier_scores_0():
  case = _Features('lenet')
  (kernel, bias), (*theta, mean, std) = case.spec.draw_initial_weights()
  assert kernel.shape == [40, 3] and bias.shape == [3]
  assert not np.any(kernel) and not np.any(bias)
  assert len(theta) == 5
  np.testing.assert_array_equal(mean, np.zeros(40))
  np.testing.assert_array_equal(std, np.ones(40))
  specs = case.spec.functional_model.initial_weights
  tf.nest.map_structure(
    lambda spec, value: spec.shape.assert_is_compatible_with(value.shape),
    specs,
    case.spec.draw_initial_weights(),
  )


@pytest.mark.parametrize(
  'build',
  [
    lambda: _Features('lenet'),
    # tests/training/test_tct_text_runs.py trains such models.
    pytest.param(lambda: _Case('unrolled'), marks=pytest.mark.slow),
  ],
)
def test_a_round_of_tff_trains_delta_only(build):
  case = build()
  process = build_fed_avg(
    case.spec,
    client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
  )
  state = process.initialize()
  before = process.get_model_weights(state)
  dataset = tf.data.Dataset.from_tensor_slices(case.batch).batch(8)
  state = process.next(state, [dataset]).state
  after = process.get_model_weights(state)
  expected = batch_gradients(
    case.spec.functional_model,
    tuple(map(tf.constant, before.trainable)),
    tuple(map(tf.constant, before.non_trainable)),
    case.batch,
    training=True,
  ).total
  for found, gradient in zip(after.trainable, expected, strict=True):
    np.testing.assert_allclose(found, -0.1 * gradient, rtol=1e-4, atol=1e-6)
  assert np.any(after.trainable[0])
  for found, old in zip(after.non_trainable, before.non_trainable, strict=True):
    np.testing.assert_array_equal(found, old)
