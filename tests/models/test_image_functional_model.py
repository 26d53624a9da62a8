"""Image models as `tff.learning` sees them, against the pure functions."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models import emnist_cnn
from models.functional_model import build_image_model
from models.image_classifier import IMAGE_CLASSIFIERS, initial_weights
from models.image_model_config import IMAGE_MODELS, ImageModelConfig
from models.model_shapes import num_parameters, weight_shapes
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.fed_fish import process
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.gradients import BatchOutput

# Smaller than what it was published for: 8 x 7 pixels.
_CONFIG = ImageModelConfig(
  name='emnist_cnn', num_classes=5, image_shape=(8, 7, 1)
)


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


def test_tables_have_the_same_models():
  assert IMAGE_MODELS == tuple(IMAGE_CLASSIFIERS)
  for name, classifier in IMAGE_CLASSIFIERS.items():
    shape = ImageModelConfig(
      name=name, num_classes=7, image_shape=classifier.image_shape
    )
    weights = initial_weights(shape, 1)
    found = [tuple(weight.shape) for weight in weights]
    assert found == list(weight_shapes(shape).values())
    assert weight_shapes(shape)['head/kernel'][1] == 7


def test_counts_of_any_model():
  # conv 9 * 32 + 32 = 320, 9 * 32 * 64 + 64 = 18,496; (8 - 4) / 2 = 2 rows
  # and 3 // 2 = 1 column of 64: 128 * 128 + 128 = 16,512; 128 * 5 + 5 = 645.
  assert num_parameters(_CONFIG) == 320 + 18_496 + 16_512 + 645
  transformer = TransformerConfig(
    num_layers=1, width=3, num_heads=1, vocabulary_size=5, sequence_length=4
  )
  assert num_parameters(transformer) == 180  # See planned_configs.
  assert weight_shapes(transformer)['token_embedding'] == (5, 3)


@pytest.mark.parametrize(
  ('values', 'words'),
  [
    (
      dict(name='vgg'),
      '`name` must be one of emnist_cnn, resnet18, linear, lenet, '
      'fed_net_cnn, found',
    ),
    (dict(num_classes=0), '`num_classes` must be at least 1, found 0'),
    (dict(image_shape=(8, 0, 1)), '`image_shape` must be at least 1, found 0'),
  ],
)
def test_wrong_shapes(values, words):
  values = dict(name='resnet18', num_classes=1, image_shape=(8, 8, 1)) | values
  with pytest.raises(ValueError, match=words):
    ImageModelConfig(**values)


def test_evaluation_is_the_pure_function(spec):
  batch = _batch()
  weights, non_trainable = spec.draw_initial_weights()
  assert non_trainable == ()
  images = batch['x']['image'].astype(np.float32) / 255
  expected = emnist_cnn.logits(weights, images)
  np.testing.assert_allclose(
    _predict(spec, batch, False), expected, rtol=1e-5, atol=1e-6
  )
  # Whatever the seeds.
  other = _batch(noise_seed=(7, 8))
  np.testing.assert_array_equal(
    _predict(spec, batch, False), _predict(spec, other, False)
  )


def test_features_are_those_of_evaluation(spec):
  batch = _batch()
  weights = spec.draw_initial_weights()
  features, mask = spec.features(weights, batch['x'], batch['y'])
  assert features.shape == (3, 128) and features.dtype == tf.float32
  np.testing.assert_array_equal(mask, np.ones(3, np.float32))
  assert mask.dtype == tf.float32
  *_, head_kernel, head_bias = weights[0]
  np.testing.assert_allclose(
    tf.matmul(features, head_kernel) + head_bias,
    _predict(spec, batch, False),
    rtol=1e-5,
    atol=1e-6,
  )
  # Whatever the seeds.
  other = _batch(noise_seed=(7, 8))
  again, _ = spec.features(weights, other['x'], other['y'])
  np.testing.assert_array_equal(features, again)


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


def test_weights_are_a_function_of_the_seed(spec):
  again = build_image_model(_CONFIG, model_seed=1).draw_initial_weights()
  other = build_image_model(_CONFIG, model_seed=2).draw_initial_weights()
  for first, second in zip(
    spec.draw_initial_weights()[0], again[0], strict=True
  ):
    np.testing.assert_array_equal(first, second)
  assert np.any(spec.draw_initial_weights()[0][0] != other[0][0])


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
    output = BatchOutput(loss, logits[rows], tf.constant(1))
    state = model.update_metrics_state(
      state, labels=labels[rows], batch_output=output
    )
  found = model.finalize_metrics(state)
  assert list(found) == ['loss', 'accuracy', 'num_tokens', 'num_sequences']
  np.testing.assert_allclose(found['loss'], mean, rtol=1e-6)
  np.testing.assert_allclose(found['accuracy'], 1 / 3, rtol=1e-6)
  assert (found['num_tokens'], found['num_sequences']) == (3, 3)


def _train(spec, num_local_epochs, observer=None):
  """Local training of two batches; returns the trained weights."""
  batch = _batch(count=4)
  dataset = tf.data.Dataset.from_tensor_slices(batch).batch(2)
  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )

  @tf.function
  def run(weights, dataset):
    return local_training.train(
      spec.functional_model,
      optimizer,
      hparams,
      weights,
      (),
      dataset,
      num_local_epochs=num_local_epochs,
      observer=observer(weights) if observer else None,
    ).trainable

  return run(spec.draw_initial_weights()[0], dataset)


@pytest.fixture(scope='module')
def trained(spec):
  return _train(spec, 2)


def test_training_follows_the_pure_functions(spec, trained):
  # Two epochs of two batches: step k meets the batch's seed folded with k,
  # split in two, of which the second drops out.
  weights = spec.draw_initial_weights()[0]
  batch = _batch(count=4)
  for step in range(4):
    rows = slice(2 * (step % 2), 2 * (step % 2) + 2)
    seed = tf.random.experimental.stateless_fold_in([5, 6], step)
    _, dropout_seed = tf.unstack(
      tf.random.experimental.stateless_split(seed, 2)
    )
    images = batch['x']['image'][rows].astype(np.float32) / 255
    with tf.GradientTape() as tape:
      tape.watch(weights)
      logits = emnist_cnn.logits(weights, images, dropout_seed=dropout_seed)
      loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(batch['y'][rows], logits)
      )
    gradients = tape.gradient(loss, weights)
    weights = [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]
  for found, expected in zip(trained, weights, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_observed_last_epoch_meets_the_same_noise(spec, trained):
  def observer(weights):
    return local_training.GradientObserver(
      process.no_squares(weights),
      lambda sums, gradients, _: process.add_squares(sums, gradients),
    )

  for found, expected in zip(_train(spec, 2, observer), trained, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_fisher_pass_has_no_noise(spec):
  weights = spec.draw_initial_weights()[0]

  @tf.function
  def sums(dataset):
    return process.squared_gradients(
      spec.functional_model, (weights, ()), dataset
    )

  found = [
    sums(tf.data.Dataset.from_tensor_slices(_batch(noise_seed=s)).batch(2))
    for s in ((5, 6), (7, 8))
  ]
  for first, second in zip(found[0].sums, found[1].sums, strict=True):
    np.testing.assert_array_equal(first, second)
  assert found[0].num_batches == 2
