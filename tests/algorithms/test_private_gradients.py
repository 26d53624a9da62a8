"""DP-SGD's gradient of a batch, followed by hand, and in local training."""

import functools

import linear_models
import numpy as np
import pytest
import small_models
import tensorflow as tf

from tff_fedfish.data import randomness
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.gradients import batch_gradients
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.rounds.private_gradients import private_gradients

_SEED = (3, 4)


def _gradients(model, weights, batch, *, step=0, seed=_SEED, **options):
  settings = dict(clip_norm=1.0, noise_multiplier=0.0, batch_size=2)
  extra_loss = options.pop('extra_loss', None)
  privacy = LocalPrivacy(**settings | options)

  @tf.function
  def run(weights, batch):
    return private_gradients(
      model,
      weights,
      (),
      batch,
      model.initialize_metrics_state(),
      tf.constant(step),
      privacy=privacy,
      noise_seed=tf.constant(seed),
      extra_loss=extra_loss,
    )

  return run(weights, batch)


def _linear_batch(x, y):
  return dict(x=tf.constant(x, tf.float32), y=tf.constant(y, tf.float32))


def test_rows_are_clipped_by_hand():
  # Loss (x w + b - y)^2 at 0: gradient -2 y (x, 1). Row 1: y 0.1, x (0, 0):
  # (0, 0, -0.2), as it is. Row 2: y -5, x (2, -2): 10 (2, -2, 1), of norm 30:
  # (2, -2, 1) / 3. Sum (2/3, -2/3, 2/15); B = 4: (1/6, -1/6, 1/30).
  found = _gradients(
    linear_models.linear_model(2),
    (tf.zeros(2), tf.constant(0.0)),
    _linear_batch([[0.0, 0.0], [2.0, -2.0]], [0.1, -5.0]),
    batch_size=4,
  )
  np.testing.assert_allclose(found.total[0], [1 / 6, -1 / 6], rtol=1e-6)
  np.testing.assert_allclose(found.total[1], 1 / 30, rtol=1e-5)
  assert found.num_examples == 4
  # (0.01 + 25) / 2
  np.testing.assert_allclose(found.loss, 12.505, rtol=1e-6)


@pytest.mark.parametrize('huge', [1e4, 1e18, np.inf])
def test_one_huge_row_moves_a_step_by_its_clip_norm(huge):
  rate, clip_norm, batch_size = 0.1, 0.5, 2

  def trained(x, y):
    optimizer = linear_models.sgd(rate)
    hparams = optimizer.get_hparams(
      optimizer.initialize(tf.TensorSpec([], tf.float32))
    )
    gradient_of = functools.partial(
      private_gradients,
      privacy=LocalPrivacy(clip_norm, 0.0, batch_size),
      noise_seed=tf.constant(_SEED),
    )

    @tf.function
    def run(dataset):
      return local_training.train(
        linear_models.linear_model(2),
        optimizer,
        hparams,
        (tf.zeros(2), tf.constant(0.0)),
        (),
        dataset,
        num_local_epochs=1,
        gradient_of=gradient_of,
      )

    kernel, bias = run(linear_models.batches(x, y, batch_size)).trainable
    return np.array([*kernel, bias])

  without = trained([[1.0, 2.0]], [0.1])
  moved = np.linalg.norm(
    trained([[1.0, 2.0], [0.5, 0.1]], [0.1, huge]) - without
  )
  # An infinite row is left out, another reaches the bound.
  expected = 0 if np.isinf(huge) else clip_norm * rate / batch_size
  np.testing.assert_allclose(moved, expected, atol=1e-7)


@pytest.mark.parametrize('name', ['linear', 'lenet'])
def test_without_clipping_and_noise_it_is_the_gradient_of_the_mean(name):
  shape = small_models.SHAPES[name]
  spec = small_models.build(shape)
  weights, _ = small_models.random_weights(spec)
  batch = tf.nest.map_structure(tf.constant, small_models.rows(shape, 4))
  model = spec.functional_model
  found = _gradients(model, weights, batch, clip_norm=1e9, batch_size=4)
  expected = batch_gradients(model, weights, (), batch, training=False)
  for a, b in zip(found.total, expected.total, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
  np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)


def test_rows_of_text_count_alike():
  # Rows with 5, 3, 0 and 1 targets: each by the mean over its own, the third
  # not at all.
  shape = small_models.SHAPES['learned']
  spec = small_models.build(shape)
  weights, _ = small_models.random_weights(spec)
  batch, model = small_models.rows(shape, 4), spec.functional_model
  found = _gradients(
    model,
    weights,
    tf.nest.map_structure(tf.constant, batch),
    clip_norm=1e9,
    batch_size=4,
  )
  total = [np.zeros(w.shape) for w in weights]
  for row in (0, 1, 3):
    part = tf.nest.map_structure(lambda t, r=row: t[r : r + 1], batch)
    gradients = batch_gradients(model, weights, (), part, training=True).total
    total = [t + g for t, g in zip(total, gradients, strict=True)]
  for a, b in zip(found.total, total, strict=True):
    np.testing.assert_allclose(a, b / 4, atol=1e-6)
  assert found.metrics['num_tokens'][0] == 9
  assert found.metrics['num_sequences'][0] == 4


def test_a_row_that_is_not_finite_adds_nothing():
  model, weights = linear_models.table_model(3), (tf.zeros(3),)
  rows = dict(x=tf.constant([0, 1]), y=tf.constant([0.5, np.nan], tf.float32))
  found = _gradients(model, weights, rows)
  np.testing.assert_allclose(found.total[0], [-0.25, 0, 0])
  np.testing.assert_allclose(found.loss, 0.0625)


class _SummedLosses:
  """A model whose only metric is the sum of its rows' losses."""

  def __init__(self, model):
    self.predict_on_batch, self.loss = model.predict_on_batch, model.loss

  def initialize_metrics_state(self):
    return tf.constant(0.0)

  def update_metrics_state(self, state, labels, batch_output):
    del labels
    return state + batch_output.loss


def test_a_row_is_accepted_by_itself():
  # The loss (0 - y)^2 is 2.25e38, and that of two rows beyond float32. Each
  # gradient, -2 y (0, 1), is clipped to (0, -1).
  model, rows = _SummedLosses(linear_models.linear_model(1)), {}
  weights = (tf.zeros(1), tf.constant(0.0))
  for num_rows in (1, 2):
    batch = _linear_batch([[0.0]] * num_rows, [1.5e19] * num_rows)
    rows[num_rows] = _gradients(model, weights, batch, batch_size=1)
  np.testing.assert_allclose(rows[1].total[1], -1.0, rtol=1e-6)
  np.testing.assert_allclose(rows[2].total[1], -2.0, rtol=1e-6)
  # Of one of them: otherwise the client would be rejected for its metrics.
  np.testing.assert_allclose(rows[2].metrics, 2.25e38, rtol=1e-6)


def test_an_extra_loss_is_clipped_with_the_data_loss():
  # Data loss 0; extra loss 30 theta: gradient 30, clipped to 1, over B = 2.
  found = _gradients(
    linear_models.scalar_model(),
    (tf.constant(0.0),),
    _linear_batch([1.0], [0.0]),
    extra_loss=lambda weights, batch, output: 30 * weights[0],
  )
  np.testing.assert_allclose(found.total[0], 0.5)


def _noise(step=0, seed=_SEED, size=100_000, **options):
  settings = dict(clip_norm=0.5, noise_multiplier=3.0, batch_size=4)
  model = linear_models.table_model(size)
  empty = dict(x=tf.zeros([0], tf.int32), y=tf.zeros([0]))
  found = _gradients(
    model,
    (tf.zeros(size),),
    empty,
    step=step,
    seed=seed,
    **settings | options,
  )
  assert found.loss == 0
  return found.total[0].numpy()


def test_a_batch_without_rows_is_noise_of_the_right_deviation():
  # sigma C / B = 3 * 0.5 / 4
  noise = _noise()
  assert np.std(noise) == pytest.approx(0.375, rel=0.02)
  assert abs(np.mean(noise)) < 5 * 0.375 / np.sqrt(len(noise))


def test_noise_is_a_function_of_seed_and_step():
  first = _noise(size=8)
  np.testing.assert_array_equal(first, _noise(size=8))
  for other in (_noise(size=8, step=1), _noise(size=8, seed=(3, 5))):
    assert not np.any(first == other)


def test_steps_share_no_noise():
  # With int32 steps one word of a seed is kept: these two agreed in it.
  noise = []
  for round_num, client, step in ((1, 6, 60), (18, 76, 74)):
    draw = randomness.generator(
      'private_noise', 6, round_num, b'client-%04d' % client
    )
    seed = draw.randint(2**31, size=2, dtype=np.int64).astype(np.int32)
    noise.append(_noise(step=step, seed=seed, size=10))
  assert not np.array_equal(*noise)


def test_tensors_have_other_noise():
  model = linear_models.linear_model(1)
  found = _gradients(
    model,
    (tf.zeros(1), tf.constant(0.0)),
    _linear_batch(np.zeros([0, 1]), []),
    noise_multiplier=1.0,
  )
  assert found.total[0][0] != found.total[1]
