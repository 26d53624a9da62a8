"""FedFish's pass after training, with dropout or without."""

import collections

import linear_models
import numpy as np
import planned_configs
import pytest
import tensorflow as tf

from models.functional_model import build_image_model, build_language_model
from models.image_model_config import ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish import fisher_diagonal
from tff_fedfish.algorithms.fed_fish import build_fed_fish
from tff_fedfish.config_fields import ConfigError
from tff_fedfish.data import randomness
from tff_fedfish.runtime.in_process_context import set_in_process_context

_THETA = np.array([0.5, -1.0, 2.0, 0.25], np.float32)


class _LinearWithDropout:
  """theta * dropout(x), with half the squared error as its loss."""

  def __init__(self, rate):
    self._rate = rate

  def predict_on_batch(self, weights, x, training):
    features = x['features']
    if training:
      features = _dropped(features, self._rate, x['noise_seed'][0])
    return tf.linalg.matvec(features, weights[0][0])

  def loss(self, output, label):
    return tf.reduce_mean(tf.square(output - label)) / 2

  def initialize_metrics_state(self):
    return collections.OrderedDict(num_examples=0.0)

  def update_metrics_state(self, state, labels, batch_output):
    num_examples = tf.cast(batch_output.num_examples, tf.float32)
    return collections.OrderedDict(
      num_examples=state['num_examples'] + num_examples
    )


def _dropped(features, rate, seed):
  return tf.nn.experimental.stateless_dropout(features, rate, seed)


def _client(num_rows=5):
  random = np.random.RandomState(3)
  return collections.OrderedDict(
    x=collections.OrderedDict(
      features=random.normal(size=(num_rows, 4)).astype(np.float32),
      noise_seed=randomness.noise_seeds(4, 1, b'a', num_rows),
    ),
    y=random.normal(size=num_rows).astype(np.float32),
  )


def _sums(rate, estimator='extra_pass', **options):
  dataset = tf.data.Dataset.from_tensor_slices(_client()).batch(2)

  @tf.function
  def run(dataset):
    return fisher_diagonal.estimate_fisher_sums(
      estimator,
      _LinearWithDropout(rate),
      None,
      (tf.constant(_THETA),),
      (),
      dataset,
      **options,
    )

  return run(dataset).squared_gradients[0].numpy()


def _by_numpy(step_of_batch, batch_size, rate=0.5):
  """Returns the sums with the noise that a batch has in some step."""
  client, total = _client(), np.zeros(4)
  for batch, start in enumerate(range(0, 5, batch_size)):
    rows = slice(start, start + batch_size)
    features, seeds = (client['x'][k][rows] for k in ('features', 'noise_seed'))
    seed = tf.random.experimental.stateless_fold_in(
      seeds[0], tf.constant(step_of_batch(batch))
    )
    features = _dropped(features, rate, seed).numpy()
    errors = features @ _THETA - client['y'][rows]
    total += np.square(np.mean(errors[:, np.newaxis] * features, axis=0))
  return total


@pytest.mark.parametrize('estimator', ['extra_pass', 'example_sq'])
def test_without_dropout_both_modes_agree_to_the_bit(estimator):
  found, expected = (
    _sums(0.0, estimator, training_mode=mode) for mode in (True, False)
  )
  np.testing.assert_array_equal(found, expected)
  # Nor has the default any dropout.
  np.testing.assert_array_equal(_sums(0.5, estimator), expected)


@pytest.mark.parametrize(
  ('estimator', 'batch_size'), [('extra_pass', 2), ('example_sq', 1)]
)
def test_noise_of_the_pass_is_that_of_no_local_step(estimator, batch_size):
  found = _sums(0.5, estimator, training_mode=True)
  np.testing.assert_allclose(
    found, _by_numpy(lambda batch: -1 - batch, batch_size), rtol=1e-5
  )
  # Epochs 1 and 2 of three batches each.
  for epoch in (0, 1):
    of_steps = _by_numpy(lambda batch, e=epoch: 3 * e + batch, batch_size)
    assert not np.allclose(found, of_steps, rtol=1e-2)


def test_every_slice_of_a_batch_draws_from_its_own_seed():
  whole, sliced = (
    _sums(0.5, training_mode=True, micro_batch_size=size) for size in (2, 1)
  )
  assert not np.allclose(whole, sliced, rtol=1e-2)
  np.testing.assert_allclose(
    _sums(0.0, training_mode=True, micro_batch_size=1), _sums(0.0), rtol=1e-5
  )


def _process(model, **options):
  set_in_process_context()
  return build_fed_fish(
    model,
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    **options,
  )


def _round(process, clients):
  """Returns the weights after a round in which clients do not move alike."""
  state = process.next(process.initialize(), clients).state
  return process.get_model_weights(state).trainable


def _differ(first, second):
  return any(np.any(a != b) for a, b in zip(first, second, strict=True))


def test_a_round_with_images():
  model = build_image_model(
    ImageModelConfig(name='emnist_cnn', num_classes=5, image_shape=(8, 7, 1)),
    model_seed=1,
  )
  random = np.random.RandomState(0)
  clients = [
    tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        x=collections.OrderedDict(
          image=random.randint(256, size=(3, 8, 7, 1)).astype(np.uint8),
          noise_seed=randomness.noise_seeds(4, 1, client_id, 3),
        ),
        y=random.randint(5, size=3).astype(np.int32),
      )
    ).batch(2)
    for client_id in (b'a', b'b')
  ]
  without = _round(_process(model), clients)
  process = _process(model, fisher_training_mode=True)
  literal = _round(process, clients)
  assert _differ(without, literal)
  assert not _differ(literal, _round(process, clients))


# `test_without_dropout_both_modes_agree_to_the_bit` stays.
@pytest.mark.slow
def test_text_has_no_dropout():
  model = build_language_model(
    TransformerConfig(
      num_layers=1, width=4, num_heads=1, vocabulary_size=7, sequence_length=3
    ),
    model_seed=1,
  )
  random = np.random.RandomState(0)
  clients = [
    tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        x=random.randint(7, size=(3, 4)).astype(np.int32),
        y=np.full(3, 3, np.int32),
      )
    ).batch(2)
    for _ in range(2)
  ]
  first, second = (
    _round(_process(model, fisher_training_mode=mode), clients)
    for mode in (True, False)
  )
  assert not _differ(first, second)


def test_estimators_without_such_a_pass_refuse_it():
  for estimator in ('last_epoch', 'true'):
    with pytest.raises(ConfigError) as error:
      planned_configs.by_hand(
        algorithm__fisher_estimator=estimator,
        algorithm__fisher_training_mode=True,
      )
    assert error.value.problems == (
      '`config.algorithm.fisher_training_mode` must be false with '
      f'fisher_estimator {estimator!r}, which makes no pass over the data '
      'towards their labels, found true',
    )
  config = planned_configs.by_hand(algorithm__fisher_training_mode=True)
  arguments = config.method.arguments(config)
  assert arguments['fisher_training_mode'] is True
