"""Image models as `tff.learning` sees them, against the pure functions."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import build_image_model
from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS
from tff_fedfish.rounds import local_training

# Smaller than what it was published for: 8 x 7 pixels.
_CONFIG = ImageModelConfig(
  name='emnist_cnn', num_classes=5, image_shape=(8, 7, 1)
)
_MODEL = IMAGE_CLASSIFIERS['emnist_cnn']


@pytest.fixture(scope='module')
def spec():
  return build_image_model(_CONFIG, model_seed=1)


def _batch(count=3, noise_seed=(5, 6), seed=0):
  random = np.random.RandomState(seed)
  return collections.OrderedDict(
    x=collections.OrderedDict(
      image=random.randint(256, size=(count, 8, 7, 1)).astype(np.uint8),
      noise_seed=np.tile(np.array(noise_seed, np.int32), (count, 1)),
    ),
    y=random.randint(5, size=count).astype(np.int32),
  )


def _predict(spec, batch, training):
  weights = spec.draw_initial_weights()
  return spec.functional_model.predict_on_batch(weights, batch['x'], training)


def test_evaluation_is_the_pure_function(spec):
  batch = _batch()
  weights, non_trainable = spec.draw_initial_weights()
  assert non_trainable == ()
  images = batch['x']['image'].astype(np.float32) / 255
  expected = _MODEL.logits(weights, images)
  logits = _predict(spec, batch, False)
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
  # Whatever the seeds.
  other = _batch(noise_seed=(7, 8))
  np.testing.assert_array_equal(logits, _predict(spec, other, False))
  expected = _MODEL.features(weights, images)
  for rows in (batch, other):
    features, mask = spec.features((weights, ()), rows['x'], rows['y'])
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mask, np.ones(3, np.float32))


def test_training_draws_from_the_first_row_alone(spec):
  batch = _batch()
  logits = _predict(spec, batch, True).numpy()
  assert np.any(logits != _predict(spec, batch, False).numpy())
  np.testing.assert_array_equal(logits, _predict(spec, batch, True))
  others = _batch()
  others['x']['noise_seed'][1:] = 99
  np.testing.assert_array_equal(logits, _predict(spec, others, True))
  others['x']['noise_seed'][0] = 99
  assert np.any(logits != _predict(spec, others, True).numpy())


def test_loss_and_metrics_by_hand(spec):
  model = spec.functional_model
  # Row 0: right, -ln(e^2 / (e^2 + 4)) = ln(1 + 4 e^-2) = 0.4327.
  # Row 1: ties, the first wins, so 0 is predicted and not 3: ln 5 = 1.6094.
  # Row 2: wrong, ln(e^1 + 4) - 0 = 1.9048.
  logits = tf.constant(
    [[0.0, 2, 0, 0, 0], [0.0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0]]
  )
  labels = tf.constant([1, 3, 4])
  mean = (np.log(1 + 4 * np.exp(-2)) + np.log(5) + np.log(np.e + 4)) / 3
  loss = model.loss(logits, labels)
  np.testing.assert_allclose(loss, mean, rtol=1e-6)
  np.testing.assert_allclose(mean, (0.4327 + 1.6094 + 1.9048) / 3, atol=1e-4)
  state = model.initialize_metrics_state()
  for rows in (slice(0, 2), slice(2, 3)):
    output = tff.learning.models.BatchOutput(loss, logits[rows], 1)
    state = model.update_metrics_state(
      state, labels=labels[rows], batch_output=output
    )
  found = model.finalize_metrics(state)
  assert list(found) == ['loss', 'accuracy', 'num_tokens', 'num_sequences']
  np.testing.assert_allclose(found['loss'], mean, rtol=1e-6)
  np.testing.assert_allclose(found['accuracy'], 1 / 3, rtol=1e-6)
  assert (found['num_tokens'], found['num_sequences']) == (3, 3)


def test_training_follows_the_pure_functions(spec):
  # Two epochs of two batches: step k meets the batch's seed folded with k,
  # split in two, of which the second drops out.
  weights = spec.draw_initial_weights()[0]
  batch = _batch(count=4)
  optimizer = tff.learning.optimizers.build_sgdm(0.1)

  @tf.function
  def train(dataset):
    return local_training.train(
      *(spec.functional_model, optimizer),
      *(optimizer.get_hparams(optimizer.initialize(())), weights, (), dataset),
      num_local_epochs=2,
    )

  dataset = tf.data.Dataset.from_tensor_slices(batch).batch(2)
  trained = train(dataset).trainable
  for step in range(4):
    rows = slice(2 * (step % 2), 2 * (step % 2) + 2)
    seed = tf.random.experimental.stateless_fold_in([5, 6], step)
    _, dropout_seed = tf.unstack(
      tf.random.experimental.stateless_split(seed, 2)
    )
    images = batch['x']['image'][rows].astype(np.float32) / 255
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits = _MODEL.logits(weights, images, dropout_seed=dropout_seed)
      loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'][rows], logits)
      )
    gradients = tape.gradient(loss, weights)
    weights = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
  for found, expected in zip(trained, weights, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
