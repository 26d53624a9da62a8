"""Local training that stops after some steps, and rows that come again."""

import collections

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import build_image_model, build_language_model
from models.image_model_config import ImageModelConfig
from models.transformer_config import TransformerConfig
from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish import process
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.rounds import local_training
from tff_fedfish.runtime.in_process_context import set_in_process_context


def _marked_model():
  """`linear_models.scalar_model` for batches that mark repeated rows."""

  @tf.function
  def predict(weights, x, training):
    del training
    return weights[0][0] * x['feature']

  spec = tf.TensorSpec([None], tf.float32)
  return tff.learning.models.FunctionalModel(
    initial_weights=((np.float32(0),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: (
      tf.reduce_mean(tf.square(output - label)) / 2
    ),
    input_spec=collections.OrderedDict(
      x=collections.OrderedDict(
        feature=spec, is_repeated=tf.TensorSpec([None], tf.bool)
      ),
      y=spec,
    ),
  )


def _marked(x, y, batch_size, num_steps, start=0):
  """H batches that run across the end of a pass, from a row on."""
  rows = (start + np.arange(num_steps * batch_size)) % len(y)
  data = collections.OrderedDict(
    x=collections.OrderedDict(
      feature=np.array(x, np.float32)[rows],
      is_repeated=np.arange(len(rows)) >= len(y),
    ),
    y=np.array(y, np.float32)[rows],
  )
  return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)


def _train(dataset, num_local_steps, *, model=None, epochs=2, observes=True):
  model = model or linear_models.scalar_model()
  optimizer = linear_models.sgd(0.1)
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )
  theta = (tf.constant(0.0),)
  observer = local_training.GradientObserver(
    process.no_squares(theta),
    lambda sums, gradients, _: process.add_squares(sums, gradients),
  )

  @tf.function
  def run(dataset):
    return local_training.train(
      model,
      optimizer,
      hparams,
      theta,
      (),
      dataset,
      num_local_epochs=epochs,
      num_local_steps=num_local_steps,
      observer=observer if observes else None,
    )

  return run(dataset)


def _labels(dataset):
  return [batch['y'].numpy().tolist() for batch in dataset]


# As in test_local_training: theta x, loss mean of (theta x - y)^2 / 2, data
# (1,2), (2,2), (3,3) in batches {1, 2}, {3}; theta = 0, rate 0.1, E = 2:
#   gradients -3, -6.3, -0.675, -0.0225; theta 0.3, 0.93, 0.9975, 0.99975
_X, _Y = [1.0, 2.0, 3.0], [2.0, 2.0, 3.0]
_GRADIENTS = np.array([-3, -6.3, -0.675, -0.0225])


class TestLimit:
  @pytest.mark.parametrize(
    ('num_steps', 'num_examples', 'num_observed', 'labels'),
    [
      (1, 2, 1, [[2, 2]]),
      (2, 3, 2, [[2, 2], [3]]),
      # Rows 1 and 2 come again, but the last pass of 2 batches is observed.
      (3, 3, 2, [[2, 2], [3]]),
      (4, 3, 2, [[2, 2], [3]]),
      # There are no more than E passes.
      (9, 3, 2, [[2, 2], [3]]),
    ],
  )
  @pytest.mark.parametrize('observes', [True, False])
  def test_by_hand(
    self, num_steps, num_examples, num_observed, labels, observes
  ):
    dataset = linear_models.batches(_X, _Y, 2)
    result = _train(dataset, num_steps, observes=observes)
    gradients = _GRADIENTS[:num_steps]
    np.testing.assert_allclose(
      result.trainable[0], -0.1 * gradients.sum(), rtol=1e-6
    )
    assert result.num_examples == num_examples
    assert _labels(result.dataset) == labels
    if observes:
      np.testing.assert_allclose(
        result.observation.sums[0],
        np.sum(gradients[-num_observed:] ** 2),
        rtol=1e-5,
      )
      assert result.observation.num_batches == num_observed

  def test_one_that_is_not_reached_changes_nothing(self):
    dataset = linear_models.batches(_X, _Y, 2)
    # Datasets are objects of their own.
    one, other = (
      _train(dataset, limit)._replace(dataset=None) for limit in (4, None)
    )
    tf.nest.map_structure(np.testing.assert_array_equal, one, other)

  def test_no_data(self):
    result = _train(linear_models.batches([], [], 2), 3)
    assert (result.trainable[0], result.num_examples) == (0, 0)
    assert (result.mean_loss, _labels(result.dataset)) == (0, [])

  def test_mean_loss_is_of_the_steps_taken(self):
    # (2^2 + 2^2) / 4 = 2; then (0.9 - 3)^2 / 2 = 2.205 at theta 0.3.
    result = _train(linear_models.batches(_X, _Y, 2), 2)
    np.testing.assert_allclose(result.mean_loss, 4.205 / 2, rtol=1e-6)


class TestRepeatedRows:
  @pytest.mark.parametrize('observes', [True, False])
  @pytest.mark.parametrize('num_steps', [1, 2, 5])
  @pytest.mark.parametrize('start', [0, 2])
  def test_they_are_trained_on_but_not_counted(
    self, start, num_steps, observes
  ):
    dataset = _marked(_X, _Y, 2, num_steps, start)
    result = _train(
      dataset, num_steps, model=_marked_model(), epochs=1, observes=observes
    )
    theta, squares = 0.0, []
    for batch in dataset:
      x, y = batch['x']['feature'].numpy(), batch['y'].numpy()
      gradient = np.mean(x * (theta * x - y))
      theta -= 0.1 * gradient
      squares.append(gradient**2)
    np.testing.assert_allclose(result.trainable[0], theta, rtol=1e-5)
    num_rows = min(3, 2 * num_steps)
    assert result.num_examples == num_rows
    order = np.roll(_Y, -start)[:num_rows].tolist()
    assert _labels(result.dataset) == [
      order[i : i + 2] for i in range(0, num_rows, 2)
    ]
    if observes:
      # One pass of 3 rows has 2 batches.
      np.testing.assert_allclose(
        result.observation.sums[0],
        np.sum(squares[-2:]),
        rtol=1e-5,
      )

  def test_without_a_limit(self):
    # Two passes over a dataset that holds row 1 twice.
    dataset = _marked([1.0, 1.0], [1.0, 3.0], 2, 2)
    result = _train(dataset, None, model=_marked_model())
    assert result.num_examples == 2
    assert _labels(result.dataset) == [[1, 3]]
    assert result.observation.num_batches == 1

  def test_batches_may_be_pairs(self):
    dataset = _marked(_X, _Y, 2, 5)
    pairs = dataset.map(lambda batch: (batch['x'], batch['y']))
    found, expected = (
      _train(each, 5, model=_marked_model(), epochs=1)
      for each in (pairs, dataset)
    )
    assert found.num_examples == 3
    assert found.trainable[0] == expected.trainable[0]
    assert [y.numpy().tolist() for _, y in found.dataset] == [[2, 2], [3]]


class TestRounds:
  @pytest.fixture(autouse=True)
  def _in_process(self):
    set_in_process_context()

  def _round(self, build, datasets, **options):
    process = build(
      _marked_model(),
      client_optimizer=linear_models.sgd(0.1),
      server_optimizer=linear_models.sgd(1.0),
      **options,
    )
    output = process.next(process.initialize(), datasets)
    return process.get_model_weights(output.state).trainable[0]

  def test_weights_count_each_row_once(self):
    # A row of y = 1 that comes 4 times, and 4 rows of y = 2, in 2 steps of 2:
    # 0.19 y as w = 1 and 4: (0.19 + 4 * 0.38) / 5.
    datasets = [
      _marked([1.0], [1.0], 2, 2),
      _marked([1.0] * 4, [2.0] * 4, 2, 2),
    ]
    theta = self._round(build_fed_avg, datasets, num_local_steps=2)
    np.testing.assert_allclose(theta, 1.71 / 5, rtol=1e-6)

  @pytest.mark.parametrize(
    'estimator', ['extra_pass', 'last_epoch', 'example_sq']
  )
  def test_fisher_is_of_the_rows_that_were_trained_on(self, estimator):
    # Batches {1, 2}, {3, 1}, {2, 3} and a row that comes three times.
    clients = [(_X, _Y, 2), ([1.0], [-1.0], 1)]
    numerator = mass = 0.0
    for x, y, batch_size in clients:
      delta, diagonal = _by_numpy(
        np.array(x), np.array(y), batch_size, 3, estimator
      )
      numerator += len(y) * diagonal * delta
      mass += len(y) * diagonal
    theta = self._round(
      build_fed_fish,
      [_marked(x, y, batch_size, 3) for x, y, batch_size in clients],
      fisher_estimator=estimator,
      num_local_steps=3,
    )
    np.testing.assert_allclose(theta, numerator / mass, rtol=1e-5)


def _by_numpy(x, y, batch_size, num_steps, estimator):
  """Returns the local theta and the Fisher of one client."""

  def gradient(theta, rows):
    return np.mean(x[rows] * (theta * x[rows] - y[rows]))

  theta, squares = 0.0, []
  for step in range(num_steps):
    rows = (step * batch_size + np.arange(batch_size)) % len(y)
    squares.append(gradient(theta, rows) ** 2)
    theta -= 0.1 * gradient(theta, rows)
  if estimator == 'last_epoch':
    num_batches = int(np.ceil(len(y) / batch_size))
    return theta, sum(squares[-num_batches:])
  size = batch_size if estimator == 'extra_pass' else 1
  passes = np.split(np.arange(len(y)), range(size, len(y), size))
  return theta, sum(gradient(theta, rows) ** 2 for rows in passes)


class TestModels:
  def test_language_model(self):
    config = TransformerConfig(
      num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=4
    )
    spec = build_language_model(config, model_seed=1, marks_repeats=True)
    x_spec = spec.functional_model.input_spec['x']
    assert list(x_spec) == ['tokens', 'is_repeated']
    assert x_spec['is_repeated'] == tf.TensorSpec([None], tf.bool)
    tokens = np.arange(10, dtype=np.int32).reshape(2, 5)
    x = {'tokens': tokens, 'is_repeated': np.array([False, True])}
    weights = spec.draw_initial_weights()
    found, expected = (
      spec.functional_model.predict_on_batch(weights, each, True)
      for each in (x, tokens)
    )
    np.testing.assert_array_equal(found['token_loss'], expected['token_loss'])

  def test_image_model(self):
    config = ImageModelConfig(
      name='emnist_cnn', num_classes=5, image_shape=(8, 7, 1)
    )
    spec = build_image_model(config, model_seed=1, marks_repeats=True)
    x_spec = spec.functional_model.input_spec['x']
    assert list(x_spec) == ['image', 'noise_seed', 'is_repeated']


@pytest.mark.parametrize('build', [build_fed_avg, build_fed_fish])
@pytest.mark.parametrize('name', ['num_local_steps', 'micro_batch_size'])
@pytest.mark.parametrize('value', [0, -1, 2.0])
def test_wrong_limits(build, name, value):
  with pytest.raises(
    ValueError,
    match=f'`{name}` must be an integer of at least 1 or None, found {value}',
  ):
    build(
      linear_models.scalar_model(),
      client_optimizer=linear_models.sgd(0.1),
      server_optimizer=linear_models.sgd(1.0),
      **{name: value},
    )
