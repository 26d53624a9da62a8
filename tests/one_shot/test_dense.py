"""DENSE: its losses by hand, a step in NumPy, and whole solves."""

import types

import numpy as np
import pytest
import tensorflow as tf
from uploaded_models import ListedUploads

from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.one_shot import dense_solve as dense
from tff_fedfish.methods.one_shot.solving import SolveContext, Upload

_SHAPE = ImageModelConfig(name='linear', num_classes=3, image_shape=(16, 17, 1))
# Not linear: a mean of weights has not the mean of logits.
_LENET = ImageModelConfig(name='lenet', num_classes=3, image_shape=(16, 17, 1))


def _weights(seed, shape=_SHAPE, deviation=0.1):
  random = np.random.RandomState(seed)
  return tuple(
    random.normal(0, deviation, size).astype(np.float32)
    for size in shape.weight_shapes().values()
  )


def _inputs(sizes=(5, 15), shape=_SHAPE):
  uploads = ListedUploads(
    [Upload(n, _weights(i, shape), {}) for i, n in enumerate(sizes)]
  )
  start = tuple(
    sum(p * w for p, w in zip(uploads.shares, tensors, strict=True)).astype(
      np.float32
    )
    for tensors in zip(*(u.weights for u in uploads), strict=True)
  )
  return uploads, start


def _context(shape=_SHAPE, score=None, seed=1, epochs=2, steps=2):
  settings = types.SimpleNamespace(
    num_outer_epochs=epochs, num_generator_steps=steps
  )
  return SolveContext(settings, shape, score, seed)


class TestLosses:
  def test_generator_loss_by_hand(self):
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

  def test_only_disagreement_moves_the_generator(self):
    def gradient(student_logits):
      ensemble_logits = tf.constant([[2.0, 1.0, 0.0]])
      with tf.GradientTape() as tape:
        tape.watch(student_logits)
        loss = dense.generator_loss(
          ensemble_logits, student_logits, tf.constant([2])
        )
      return tape.gradient(loss, student_logits).numpy()

    np.testing.assert_array_equal(gradient(tf.constant([[5.0, 4.0, 1.0]])), 0)
    assert np.all(gradient(tf.constant([[0.0, 1.0, 0.5]])) != 0)

  def test_distillation_loss_by_hand(self):
    # D / 20 = log [3, 1] and f_S / 20 = log [1, 1] up to a constant:
    # 400 (3/4 log(3/4 / (1/2)) + 1/4 log(1/4 / (1/2))) = 400 * 0.1308120
    loss = dense.distillation_loss(
      20 * tf.math.log([[3.0, 1.0]]), tf.constant([[7.0, 7.0]])
    )
    assert float(loss) == pytest.approx(52.324814, rel=1e-5)

  def test_equal_logits_up_to_a_constant_per_row(self):
    logits = tf.random.stateless_normal([4, 3], [1, 2], stddev=9.0)
    shift = tf.constant([[1.0], [-2.0], [0.0], [30.0]])
    loss = dense.distillation_loss(logits, logits + shift)
    assert float(loss) == pytest.approx(0, abs=1e-4)

  def test_confident_logits_stay_finite(self):
    first, second = tf.constant([[1e4, 0.0]]), tf.constant([[0.0, 1e4]])
    with tf.GradientTape() as tape:
      tape.watch((first, second))
      loss = dense.generator_loss(first, second, tf.constant([0]))
    # -1/2 KL, and KL = 1e4.
    assert float(loss) == pytest.approx(-5e3)
    for gradient in tape.gradient(loss, (first, second)):
      assert np.all(np.isfinite(gradient))


def test_two_distillation_steps_in_numpy():
  random = np.random.RandomState(7)
  kernel, bias = random.normal(size=(4, 3)), random.normal(size=3)
  student = [tf.Variable(kernel, dtype=tf.float32)]
  student.append(tf.Variable(bias, dtype=tf.float32))
  optimizer = dense.student_optimizer()
  optimizer.build(student)
  kernel_velocity, bias_velocity = np.zeros((4, 3)), np.zeros(3)
  for _ in range(2):
    # [batch, height, width, channels]
    images = random.uniform(size=(5, 2, 2, 1))
    targets = 30 * random.normal(size=(5, 3))
    loss = dense.distillation_step(
      IMAGE_CLASSIFIERS['linear'].logits,
      student,
      optimizer,
      tf.constant(images, tf.float32),
      tf.constant(targets, tf.float32),
    )
    pixels = images.reshape(5, 4)
    p, q = (_softmax(z / 20) for z in (targets, pixels @ kernel + bias))
    expected = 400 * np.mean(np.sum(p * np.log(p / q), axis=1))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    # d KL / d logits = (q - p) / 20 for each row, times 400, over 5 rows.
    gradient = 20 * (q - p) / 5
    kernel_velocity = 0.9 * kernel_velocity + pixels.T @ gradient
    bias_velocity = 0.9 * bias_velocity + gradient.sum(axis=0)
    kernel = kernel - 0.01 * kernel_velocity
    bias = bias - 0.01 * bias_velocity
  np.testing.assert_allclose(student[0], kernel, atol=1e-5)
  np.testing.assert_allclose(student[1], bias, atol=1e-5)


def _softmax(logits):
  powers = np.exp(logits - logits.max(axis=1, keepdims=True))
  return powers / powers.sum(axis=1, keepdims=True)


class TestSolve:
  def test_equal_arguments_give_equal_results(self):
    first, second, other = (
      dense.solve(*_inputs(shape=_LENET), _context(_LENET, seed=seed, steps=1))
      for seed in (1, 1, 2)
    )
    for one, two in zip(first.weights, second.weights, strict=True):
      assert one.tobytes() == two.tobytes()
    for name, curve in first.measurements.items():
      assert curve.tobytes() == second.measurements[name].tobytes()
      # Another seed draws other noise, labels and generators.
      assert np.all(curve != other.measurements[name])

  def test_results_without_a_score(self):
    uploads, start = _inputs(shape=_LENET)
    result = dense.solve(uploads, start, _context(_LENET, epochs=3, steps=2))
    assert result.best_step is None
    for found, given in zip(result.weights, start, strict=True):
      assert found.dtype == np.float32
      assert found.shape == given.shape
      assert np.max(np.abs(found - given)) > 1e-5
    curves = result.measurements
    assert curves['generator_loss'].shape == (3 * 2,)
    # One batch, two and three.
    assert curves['distillation_loss'].shape == (1 + 2 + 3,)
    assert all(np.all(np.isfinite(curve)) for curve in curves.values())

  @pytest.mark.parametrize(
    ('scores', 'best_step'), [([0.2, 0.5, 0.5], 2), ([0.0, 0.0, 0.0], 1)]
  )
  def test_the_first_best_student_is_kept(self, scores, best_step):
    seen = []

    def score(weights):
      seen.append(weights)
      return scores[len(seen) - 1]

    result = dense.solve(*_inputs(), _context(score=score, epochs=3, steps=1))
    assert len(seen) == 3
    assert result.best_step == best_step
    for found, kept in zip(result.weights, seen[best_step - 1], strict=True):
      np.testing.assert_array_equal(found, kept)
    # Later epochs did not change what was kept.
    assert len({weights[0].tobytes() for weights in seen}) == 3

  def test_clients_that_agree_leave_a_linear_student_as_it_is(self):
    # D(x) = f_S(x), as the mean of equal models is each of them.
    upload = Upload(4, _weights(3), {})
    uploads = ListedUploads([upload, upload._replace(client_weight=12)])
    result = dense.solve(uploads, upload.weights, _context())
    for found, given in zip(result.weights, upload.weights, strict=True):
      np.testing.assert_allclose(found, given, atol=1e-6)
    np.testing.assert_allclose(
      result.measurements['distillation_loss'], 0, atol=1e-3
    )

  def test_logits_are_weighted_by_the_shares(self):
    # A linear model of mean weights has the mean logits, so the student stays:
    # with p = (1/4, 3/4) only at 0.25 w_1 + 0.75 w_2.
    uploads, start = _inputs(sizes=(5, 15))
    result = dense.solve(uploads, start, _context())
    np.testing.assert_allclose(result.weights[0], start[0], atol=1e-5)

  def test_distillation_brings_a_student_near_the_ensemble(self):
    upload = Upload(4, _weights(3), {})
    start = tuple(np.zeros_like(weight) for weight in upload.weights)
    result = dense.solve(
      ListedUploads([upload]), start, _context(epochs=4, steps=1)
    )
    curve = result.measurements['distillation_loss']
    assert curve[-1] < 0.7 * curve[0]

  def test_the_generator_makes_the_ensemble_surer(self):
    shape = ImageModelConfig(
      name='linear', num_classes=10, image_shape=(16, 16, 1)
    )
    uploads, start = _inputs(shape=shape)
    result = dense.solve(uploads, start, _context(shape, epochs=1, steps=8))
    curve = result.measurements['generator_loss']
    assert curve[-1] < curve[0]

  def test_a_language_model_is_refused(self):
    shape = TransformerConfig(
      num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=4
    )
    with pytest.raises(ValueError, match='`context.shape` must be of images'):
      dense.solve(*_inputs(), _context(shape))


@pytest.mark.parametrize('name', sorted(IMAGE_CLASSIFIERS))
def test_generated_images_are_normalized_as_stored_ones(name):
  stored = np.random.RandomState(1).randint(
    256, size=(3, 16, 18, 1), dtype='uint8'
  )
  normalize = IMAGE_CLASSIFIERS[name].normalize
  images = tf.constant(stored / 255.0, tf.float32)
  with tf.GradientTape() as tape:
    tape.watch(images)
    found = normalize(255.0 * images)
    loss = tf.reduce_sum(found**3)
  np.testing.assert_allclose(found, normalize(tf.constant(stored)), atol=1e-5)
  gradient = tape.gradient(loss, images)
  assert np.all(np.isfinite(gradient))
  assert np.abs(gradient).max() > 0
