"""One client's training, followed by hand and by NumPy."""

import collections

import linear_models
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import build_language_model
from models.transformer_config import TransformerConfig
from tff_fedfish.rounds import local_training

_TEXT = TransformerConfig(
  num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=5
)

# theta x, loss mean of (theta x - y)^2 / 2, data (1,2), (2,2), (3,3) in batches
# {1, 2}, {3}; theta = 0, learning rate 0.1, E = 2:
#   gradients -3, -6.3, -0.675, -0.0225; theta 0.3, 0.93, 0.9975, 0.99975
_X, _Y = [1.0, 2.0, 3.0], [2.0, 2.0, 3.0]
_GRADIENTS = np.array([-3, -6.3, -0.675, -0.0225])


# Sum of squared gradients, and their number.
_SQUARES = local_training.GradientObserver(
  (tf.constant(0.0), tf.constant(0)),
  lambda sums, gradients, num_rows: (sums[0] + gradients[0] ** 2, sums[1] + 1),
)


def _train(
  dataset, *, theta=0.0, optimizer=None, model=None, observes=False, **options
):
  optimizer = optimizer or linear_models.sgd(0.1)
  hparams = optimizer.get_hparams(
    optimizer.initialize(tf.TensorSpec([], tf.float32))
  )
  observer = _SQUARES if observes else None

  @tf.function
  def run(dataset):
    return local_training.train(
      model or linear_models.scalar_model(),
      optimizer,
      hparams,
      (tf.constant(theta),),
      (),
      dataset,
      observer=observer,
      **dict(num_local_epochs=2) | options,
    )

  return run(dataset)


def _assert_observed(result, gradients):
  squares, count = result.gradient_sums
  np.testing.assert_allclose(squares, np.sum(np.square(gradients)), rtol=1e-5)
  assert count == len(gradients)


def _labels(dataset):
  return [batch['y'].numpy().tolist() for batch in dataset]


class TestEpochs:
  @pytest.mark.parametrize(
    ('num_epochs', 'observes'), [(1, True), (2, True), (2, False)]
  )
  def test_by_hand(self, num_epochs, observes):
    result = _train(
      linear_models.batches(_X, _Y, 2),
      num_local_epochs=num_epochs,
      observes=observes,
    )
    steps = _GRADIENTS[: 2 * num_epochs]
    np.testing.assert_allclose(
      result.trainable[0], -0.1 * sum(steps), rtol=1e-6
    )
    # The rows of one pass; the last epoch is observed.
    assert result.num_examples == 3
    if observes:
      _assert_observed(result, steps[-2:])
    else:
      assert result.gradient_sums is None

  @pytest.mark.parametrize(('observes', 'limit'), [(True, 3), (False, None)])
  def test_no_data_leaves_the_weights(self, observes, limit):
    result = _train(
      linear_models.batches([], [], 2),
      theta=4.0,
      observes=observes,
      num_local_steps=limit,
    )
    assert (result.trainable[0], result.num_examples) == (4, 0)
    assert (result.mean_loss, _labels(result.dataset)) == (0, [])

  def test_without_an_optimizer_weights_stay(self):
    dataset = linear_models.batches(_X, _Y, 2)
    model, theta = linear_models.scalar_model(), (tf.constant(0.5),)

    @tf.function
    def run():
      return local_training.train(
        model,
        None,
        (),
        theta,
        (),
        dataset,
        num_local_epochs=1,
        observer=_SQUARES,
      )

    result = run()
    assert result.trainable[0] == 0.5
    # mean(1 (0.5 - 2), 2 (1 - 2)) = -1.75, and 3 (1.5 - 3) = -4.5.
    _assert_observed(result, [-1.75, -4.5])


@pytest.mark.parametrize(
  ('num_steps', 'num_examples', 'num_observed', 'labels', 'observes'),
  [
    (1, 2, 1, [[2, 2]], True),
    (2, 3, 2, [[2, 2], [3]], True),
    # Rows 1 and 2 come again, but the last pass of 2 batches is observed.
    (3, 3, 2, [[2, 2], [3]], True),
    (3, 3, 0, [[2, 2], [3]], False),
    # There are no more than E passes.
    (9, 3, 2, [[2, 2], [3]], True),
  ],
)
def test_limit_of_steps(
  num_steps, num_examples, num_observed, labels, observes
):
  result = _train(
    linear_models.batches(_X, _Y, 2),
    num_local_steps=num_steps,
    observes=observes,
  )
  gradients = _GRADIENTS[:num_steps]
  np.testing.assert_allclose(
    result.trainable[0], -0.1 * gradients.sum(), rtol=1e-6
  )
  assert result.num_examples == num_examples
  assert _labels(result.dataset) == labels
  if num_steps == 2:
    # (2^2 + 2^2) / 4 = 2; then (0.9 - 3)^2 / 2 = 2.205 at theta 0.3.
    np.testing.assert_allclose(result.mean_loss, 4.205 / 2, rtol=1e-6)
  if observes:
    _assert_observed(result, gradients[-num_observed:])


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


class TestRepeatedRows:
  @pytest.mark.parametrize(
    ('num_steps', 'start', 'observes', 'pairs'),
    [(1, 0, True, False), (5, 2, True, False), (5, 0, False, True)],
  )
  def test_they_are_trained_on_but_not_counted(
    self, num_steps, start, observes, pairs
  ):
    dataset = _marked(_X, _Y, 2, num_steps, start)
    given = dataset
    if pairs:
      given = dataset.map(lambda batch: (batch['x'], batch['y']))
    result = _train(
      given,
      num_local_steps=num_steps,
      model=linear_models.marked_model(),
      num_local_epochs=1,
      observes=observes,
    )
    theta, gradients = 0.0, []
    for batch in dataset:
      x, y = batch['x']['feature'].numpy(), batch['y'].numpy()
      gradients.append(np.mean(x * (theta * x - y)))
      theta -= 0.1 * gradients[-1]
    np.testing.assert_allclose(result.trainable[0], theta, rtol=1e-5)
    num_rows = min(3, 2 * num_steps)
    assert result.num_examples == num_rows
    order = np.roll(_Y, -start)[:num_rows].tolist()
    labels = [
      (batch[1] if pairs else batch['y']).numpy().tolist()
      for batch in result.dataset
    ]
    assert labels == [order[i : i + 2] for i in range(0, num_rows, 2)]
    if observes:
      # One pass of 3 rows has 2 batches.
      _assert_observed(result, gradients[-2:])

  def test_without_a_limit(self):
    # Two passes over a dataset that holds row 1 twice.
    dataset = _marked([1.0, 1.0], [1.0, 3.0], 2, 2)
    result = _train(dataset, model=linear_models.marked_model(), observes=True)
    assert result.num_examples == 2
    assert _labels(result.dataset) == [[1, 3]]
    assert result.gradient_sums[1] == 1

  def test_language_models_take_marked_rows(self):
    spec = build_language_model(_TEXT, model_seed=1, marks_repeats=True)
    x_spec = spec.functional_model.input_spec['x']
    assert list(x_spec) == ['tokens', 'is_repeated']
    assert x_spec['is_repeated'] == tf.TensorSpec([None], tf.bool)
    tokens = np.arange(12, dtype=np.int32).reshape(2, 6) % 11
    x = {'tokens': tokens, 'is_repeated': np.array([False, True])}
    found, expected = (
      spec.functional_model.predict_on_batch(
        spec.draw_initial_weights(), each, True
      )
      for each in (x, tokens)
    )
    np.testing.assert_array_equal(found['token_loss'], expected['token_loss'])


class _ClippedWithDecay(tff.learning.optimizers.Optimizer):
  """w - rate (g clipped to a norm) - rate decay w."""

  def __init__(self, rate, max_norm, decay):
    self._constants = rate, max_norm, decay

  def initialize(self, specs):
    return collections.OrderedDict()

  def next(self, state, weights, gradients):
    rate, max_norm, decay = self._constants
    clipped, _ = tf.clip_by_global_norm(gradients, max_norm)
    return state, tf.nest.map_structure(
      lambda w, g: w - rate * g - rate * decay * w, weights, tuple(clipped)
    )


def test_order_of_a_step():
  # theta = 1, loss (theta - 3)^2 / 2 + 5 theta: -2 for the observer, 3 for
  # `correct_gradient`, which makes it 10 * 3 + theta = 31; clipped to 0.5;
  # theta = 1 - 0.1 * 0.5 - 0.1 * 2 * 1 = 0.75. The loss reported is 2.
  result = _train(
    linear_models.batches([1.0], [3.0], 1),
    theta=1.0,
    num_local_epochs=1,
    optimizer=_ClippedWithDecay(0.1, 0.5, 2.0),
    extra_loss=lambda weights, batch, output: 5 * weights[0],
    correct_gradient=lambda gradients, weights: tf.nest.map_structure(
      lambda g, w: 10 * g + w, gradients, weights
    ),
    observes=True,
  )
  np.testing.assert_allclose(result.trainable[0], 0.75, rtol=1e-6)
  _assert_observed(result, [-2.0])
  assert result.mean_loss == 2.0


class _CountingModel:
  """Counts the backward passes that are traced."""

  def __init__(self):
    self.num_passes = 0

  def predict_on_batch(self, weights, x, training):
    @tf.custom_gradient
    def identity(value):
      def backward(upstream):
        self.num_passes += 1
        return upstream

      return tf.identity(value), backward

    return identity(weights[0][0]) * x

  def loss(self, output, label):
    return tf.reduce_mean(output - label)

  def initialize_metrics_state(self):
    return ()

  def update_metrics_state(self, state, labels, batch_output):
    return state


@pytest.mark.parametrize(
  ('has_extra_loss', 'observes', 'num_passes'),
  [
    (True, False, 1),
    # One of the first epoch; only the observed steps take two.
    (True, True, 3),
  ],
)
def test_number_of_backward_passes(has_extra_loss, observes, num_passes):
  model = _CountingModel()
  _train(
    linear_models.batches([1.0], [1.0], 1),
    theta=1.0,
    model=model,
    extra_loss=(lambda w, batch, output: w[0]) if has_extra_loss else None,
    observes=observes,
  )
  assert model.num_passes == num_passes


def test_evaluate_counts_every_row_once():
  spec = build_language_model(_TEXT, model_seed=3)
  weights = spec.draw_initial_weights()
  tokens = np.arange(18, dtype=np.int32).reshape(3, 6) % 11
  dataset = tf.data.Dataset.from_tensor_slices(
    dict(x=tokens, y=np.array([5, 2, 0], np.int32))
  ).batch(2)

  @tf.function
  def run():
    return spec.functional_model.finalize_metrics(
      local_training.evaluate(spec.functional_model, *weights, dataset)
    )

  metrics = run()
  assert metrics['num_tokens'] == 7
  assert metrics['num_sequences'] == 3
  # Small random weights predict nearly uniformly: ln 11 = 2.398.
  np.testing.assert_allclose(metrics['loss'], np.log(11), atol=0.1)
