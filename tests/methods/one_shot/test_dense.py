"""DENSE: its losses by hand, steps in NumPy, and whole solves."""

import numpy as np
import pytest
import tensorflow as tf
from uploaded_models import ListedUploads, solve

from models.image_model_config import ImageModelConfig
from tff_fedfish.methods.one_shot import dense
from tff_fedfish.methods.one_shot.uploads import SolveContext

_SHAPE = ImageModelConfig(name='linear', num_classes=3, image_shape=(2, 3, 1))


def _weights(seed):
  random = np.random.RandomState(seed)
  return tuple(
    random.normal(0, 0.1, size).astype(np.float32)
    for size in _SHAPE.weight_shapes().values()
  )


def _uploads():
  return ListedUploads(_SHAPE, 'none', (5, 15), [_weights(0), _weights(1)])


def _solve_from_zeros(scores=None, seed=1):
  """Returns the result of three epochs, and the students that were scored."""
  seen = []

  def score(weights):
    seen.append(weights)
    return scores[len(seen) - 1]

  context = SolveContext(_SHAPE, score=scores and score, seed=seed)
  start = tuple(map(np.zeros_like, _weights(0)))
  method = dense.Dense(num_outer_epochs=3, num_generator_steps=2)
  return method.solve(_uploads(), start, context), seen


@pytest.fixture(scope='module')
def scored():
  return _solve_from_zeros([0.2, 0.5, 0.5])


def test_generator_loss_by_hand():
  # row  D           f_S         label  CE(D, label)     same class
  #  1   log [1, 3]  log [3, 1]    1    log(4 / 3)       no
  #  2   log [4, 1]  log [3, 2]    1    log 5            yes
  # KL of row 1: 1/4 log(1/3) + 3/4 log 3 = log(3) / 2; row 2 counts 0.
  # (log(4 / 3) + log 5 - log(3) / 4) / 2 = (1.897120 - 0.274653) / 2
  loss = dense.generator_loss(
    tf.math.log([[1.0, 3.0], [4.0, 1.0]]),
    tf.math.log([[3.0, 1.0], [3.0, 2.0]]),
    tf.constant([1, 1]),
  )
  assert float(loss) == pytest.approx(0.8112335, rel=1e-6)
  # Confident logits stay finite: -1/2 KL, and KL = 1e4.
  first, second = tf.constant([[1e4, 0.0]]), tf.constant([[0.0, 1e4]])
  with tf.GradientTape() as tape:
    tape.watch((first, second))
    loss = dense.generator_loss(first, second, tf.constant([0]))
  assert float(loss) == pytest.approx(-5e3)
  for gradient in tape.gradient(loss, (first, second)):
    assert np.all(np.isfinite(gradient))


def test_enlarging_is_repeating_and_convolving():
  # Each row and column twice, then a common 3x3 convolution.
  inputs = tf.random.stateless_normal([2, 4, 7, 3], [1, 2])
  kernel = tf.random.stateless_normal([3, 3, 3, 5], [3, 4])
  repeated = tf.repeat(tf.repeat(inputs, 2, axis=1), 2, axis=2)
  expected = tf.nn.conv2d(repeated, kernel, strides=1, padding='SAME')
  found = dense.enlarge_and_convolve(inputs, kernel)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_first_best_student_is_kept(scored):
  result, seen = scored
  assert len(seen) == 3
  assert result.best_step == 2
  for found, kept in zip(result.weights, seen[1], strict=True):
    np.testing.assert_array_equal(found, kept)
  # Later epochs did not change what was kept.
  assert len({weights[0].tobytes() for weights in seen}) == 3


@pytest.mark.slow
def test_results_without_a_score(scored):
  first, seen = scored
  second, _ = _solve_from_zeros()
  assert second.best_step is None
  for found, last in zip(second.weights, seen[2], strict=True):
    assert found.dtype == np.float32
    assert found.tobytes() == last.tobytes()
  # Another seed draws other noise, labels and generators; a score of 0 counts.
  other, _ = _solve_from_zeros([0.0, 0.0, 0.0], seed=2)
  assert other.best_step == 1
  # Three epochs with two steps of the generator; one batch, two and three.
  for name, size in ('generator_loss', 3 * 2), ('distillation_loss', 1 + 2 + 3):
    curve = first.measurements[name]
    assert curve.shape == (size,)
    assert np.all(np.isfinite(curve))
    assert curve.tobytes() == second.measurements[name].tobytes()
    assert np.all(curve != other.measurements[name])


def test_logits_are_weighted_by_the_shares():
  # A linear model of mean weights has the mean logits, so the student stays:
  # with p = (1/4, 3/4) only at 0.25 w_1 + 0.75 w_2.
  uploads = _uploads()
  result = solve(
    uploads, _SHAPE, dense.Dense, num_outer_epochs=2, num_generator_steps=2
  )
  for found, given in zip(result.weights, uploads.mean(), strict=True):
    np.testing.assert_allclose(found, given, atol=1e-5)
  curve = result.measurements['distillation_loss']
  np.testing.assert_allclose(curve, 0, atol=1e-3)


def test_distillation_by_hand():
  # An ensemble that says log [8, 1, 1] times 20 of every image, of one pixel,
  # and a student at 0. KL to the uniform one: 0.8 log 2.4 + 0.2 log 0.3.
  shape = ImageModelConfig(name='linear', num_classes=3, image_shape=(1, 1, 1))
  ensemble = (np.zeros([1, 3]), 20 * np.log([8.0, 1.0, 1.0]))
  uploads = ListedUploads(shape, 'none', (4,), [ensemble])
  start = tuple(np.zeros_like(weight, np.float32) for weight in ensemble)
  method = dense.Dense(num_outer_epochs=2, num_generator_steps=1)
  result = method.solve(uploads, start, SolveContext(shape))
  loss = result.measurements['distillation_loss']
  assert loss[0] == pytest.approx(400 * 0.459580, rel=1e-4)
  # d loss / d bias = 20 (q - p), q uniform, which steps hardly change. Rate
  # 0.01; with momentum 0.9 three steps are 1 + 1.9 + 2.71 as long as the first.
  step = -0.01 * 20 * (1 / 3 - np.array([0.8, 0.1, 0.1]))
  np.testing.assert_allclose(result.weights[1], 5.61 * step, rtol=0.1)
