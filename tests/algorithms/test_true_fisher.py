"""FedFish with the Fisher of the model's own distribution, as a process."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec, build_language_model
from models.token_loss import draw_labels
from models.transformer_config import TransformerConfig
from tff_fedfish.algorithms.fed_fish import build_fed_fish
from tff_fedfish.runtime.in_process_context import set_in_process_context

_NUM_CLASSES = 3


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()


def _softmax_model(with_seeds=True, draws=True) -> ModelSpec:
  """Logits x W of 2 features and 3 classes, W zero at first."""
  features = tf.TensorSpec([None, 2], tf.float32)
  seeds = tf.TensorSpec([None, 2], tf.int32)

  @tf.function(autograph=False)
  def logits_of(weights, x, training):
    del training
    return tf.matmul(x['features'] if with_seeds else x, weights[0][0])

  def losses(labels, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

  def sampled_label_loss(weights, x, unused_y, seed):
    logits = logits_of(weights, x, False)
    drawn = losses(draw_labels(logits, seed), logits)
    return tf.reduce_sum(drawn), tf.shape(drawn, tf.int64)[0]

  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([2, _NUM_CLASSES], np.float32),), ()),
    predict_on_batch_fn=logits_of,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(
      losses(label, output)
    ),
    input_spec=collections.OrderedDict(
      x=collections.OrderedDict(features=features, noise_seed=seeds)
      if with_seeds
      else features,
      y=tf.TensorSpec([None], tf.int32),
    ),
  )
  return ModelSpec(
    model,
    lambda: ((tf.zeros([2, _NUM_CLASSES]),), ()),
    sampled_label_loss if draws else None,
  )


def _build(model, **options):
  return build_fed_fish(
    model,
    client_optimizer=tff.learning.optimizers.build_sgdm(0.5),
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    fisher_estimator='true',
    **options,
  )


def _clients(seed=3):
  """Arrays (features, seeds of noise, labels) of clients of 3 and 5 rows."""
  random = np.random.RandomState(seed)
  return [
    (
      random.normal(size=(count, 2)).astype(np.float32),
      random.randint(2**31, size=(count, 2)).astype(np.int32),
      random.randint(_NUM_CLASSES, size=count).astype(np.int32),
    )
    for count in (3, 5)
  ]


def _datasets(clients):
  return [
    tf.data.Dataset.from_tensor_slices(
      collections.OrderedDict(
        x=collections.OrderedDict(features=features, noise_seed=seeds), y=labels
      )
    ).batch(2)
    for features, seeds, labels in clients
  ]


def _softmax(x, kernel):
  exponentials = np.exp(x @ kernel)
  return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _by_numpy(clients, reduction):
  """One round of E = 1; the labels drawn at the trained weights."""
  numerator = mass = np.zeros([2, _NUM_CLASSES])
  for features, seeds, labels in clients:
    kernel = np.zeros([2, _NUM_CLASSES])
    for start in range(0, len(labels), 2):
      x, y = features[start : start + 2], labels[start : start + 2]
      excess = _softmax(x, kernel) - np.eye(_NUM_CLASSES)[y]
      kernel = kernel - 0.5 * x.T @ excess / len(y)
    diagonal = np.zeros_like(kernel)
    for x, seed in zip(features, seeds, strict=True):
      logits = tf.constant(x[np.newaxis] @ kernel, tf.float32)
      label = draw_labels(logits, seed).numpy()[0]
      excess = _softmax(x, kernel) - np.eye(_NUM_CLASSES)[label]
      diagonal += np.outer(x, excess) ** 2
    diagonal /= len(labels) if reduction == 'mean' else 1
    diagonal += 1e-8 * diagonal.mean()
    numerator = numerator + len(labels) * diagonal * -kernel
    mass = mass + len(labels) * diagonal
  return -numerator / mass


def _round(process, datasets):
  output = process.next(process.initialize(), datasets)
  weights = process.get_model_weights(output.state).trainable
  return [np.asarray(weight) for weight in weights], output.metrics


@pytest.fixture(scope='module')
def process(_in_process):
  return _build(_softmax_model())


class TestRound:
  def test_equals_numpy(self, process):
    clients = _clients()
    (kernel,), _ = _round(process, _datasets(clients))
    expected = _by_numpy(clients, 'sum')
    np.testing.assert_allclose(kernel, expected, rtol=1e-4)
    # Other draws give another round; the same ones the same, to the last bit.
    reseeded = [(x, seeds + 1, y) for x, seeds, y in clients]
    (other,), _ = _round(process, _datasets(reseeded))
    assert np.max(np.abs(other - expected)) > 1e-3
    (again,), _ = _round(process, _datasets(clients))
    np.testing.assert_array_equal(again, kernel)

  @pytest.mark.slow
  def test_mean_over_targets_equals_numpy(self):
    clients = _clients()
    (kernel,), _ = _round(
      _build(_softmax_model(), fisher_reduction='mean'), _datasets(clients)
    )
    expected = _by_numpy(clients, 'mean')
    np.testing.assert_allclose(kernel, expected, rtol=1e-4)
    assert np.max(np.abs(_by_numpy(clients, 'sum') - expected)) > 1e-3

  def test_client_that_diverged_is_counted(self, process):
    clients = _clients()
    broken = clients[0][0].copy()
    broken[1, 0] = np.nan
    (kernel,), metrics = _round(
      process, _datasets([(broken, *clients[0][1:]), clients[1]])
    )
    (alone,), _ = _round(process, _datasets(clients[1:]))
    np.testing.assert_array_equal(kernel, alone)
    assert metrics['client_work']['clients']['num_non_finite_clients'] == 1

  @pytest.mark.slow
  def test_language_model_learns_and_does_not_read_its_padding(self):
    config = TransformerConfig(
      num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=4
    )
    process = _build(
      build_language_model(config, model_seed=1, noise_seeds=True)
    )

    def datasets(padding):
      random = np.random.RandomState(5)
      tokens = random.randint(11, size=(2, 3, 5)).astype(np.int32)
      tokens[:, 2, 3:] = padding
      return [
        tf.data.Dataset.from_tensor_slices(
          collections.OrderedDict(
            x=collections.OrderedDict(
              tokens=rows, noise_seed=np.arange(6, dtype=np.int32).reshape(3, 2)
            ),
            y=np.array([4, 4, 2], np.int32),
          )
        ).batch(2)
        for rows in tokens
      ]

    weights, metrics = _round(process, datasets(padding=0))
    assert metrics['client_work']['train']['num_tokens'] == 2 * (4 + 4 + 2)
    assert metrics['client_work']['clients']['num_non_finite_clients'] == 0
    assert all(np.all(np.isfinite(weight)) for weight in weights)
    assert metrics['finalizer']['update_is_all_zero'] == 0
    others, _ = _round(process, datasets(padding=9))
    for one, other in zip(weights, others, strict=True):
      np.testing.assert_array_equal(one, other)


class TestModelsThatCannot:
  def test_without_drawn_loss(self):
    with pytest.raises(
      ValueError,
      match='requires a ModelSpec with `sampled_label_loss`, found ModelSp',
    ):
      _build(_softmax_model(draws=False))

  def test_without_seeds(self):
    words = (
      "`fisher_estimator` 'true' requires batches whose `x` is a mapping with "
      "'noise_seed', .* but the `input_spec` of `model` has none. Use "
    )
    config = TransformerConfig(
      num_layers=1, width=8, num_heads=2, vocabulary_size=11, sequence_length=4
    )
    for model in (
      _softmax_model(with_seeds=False),
      build_language_model(config, model_seed=1),
    ):
      with pytest.raises(ValueError, match=words):
        _build(model)

  def test_ragged_correction_means_nothing(self):
    with pytest.raises(ValueError, match="square .* of batches, found 'true'"):
      _build(_softmax_model(), ragged_correction=True, local_batch_size=2)
