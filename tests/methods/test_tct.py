"""TCT's rounds on features: sums, the regression, and what clients keep."""

import collections
import functools

import gram_reference
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import given, settings
from hypothesis import strategies as st
from stateful_rounds import Rounds

from models.functional_model import build_image_model
from models.image_model_config import ImageModelConfig
from tff_fedfish.methods.tct import linearized, regression
from tff_fedfish.methods.tct.convex import Convex
from tff_fedfish.methods.tct.feature_sums import FeatureSums
from tff_fedfish.runtime.in_process_context import set_in_process_context

_OPTIMIZERS = dict(
  client_optimizer=tff.learning.optimizers.build_sgdm(0.1),
  server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
)
_NUM_STEPS, _STEP_SIZE = 40, 0.05
_UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.fixture(scope='module', autouse=True)
def context():
  set_in_process_context()
  yield
  _convex.cache_clear()


def _network(num_classes=4):
  shape = ImageModelConfig(
    name='linear', num_classes=num_classes, image_shape=(16, 16, 1)
  )
  return build_image_model(shape, model_seed=1)


def _batches(features, labels, basis=None, rows=2):
  """Returns the batches that a client is fed with.

  Args:
    features: Its features, [n, p].
    labels: Their classes.
    basis: (U, S_1 and S_2). None: x has features only.
    rows: Rows of a batch.
  """
  x = collections.OrderedDict(features=np.asarray(features, np.float16))
  if basis is not None:
    x['vectors'], sums = basis
  dataset = tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(x=x, y=np.asarray(labels, np.int32))
  ).batch(rows)
  if basis is None:
    return dataset
  return dataset.map(
    lambda batch: collections.OrderedDict(
      x=collections.OrderedDict(batch['x'], power_sums=tf.constant(sums)),
      y=batch['y'],
    )
  )


def _basis(features, mean, std, num_steps=_NUM_STEPS, step_size=_STEP_SIZE):
  values, vectors = regression.gram_basis(
    np.asarray(features, np.float16), mean, std
  )
  rates = step_size / len(values) * values
  return vectors, np.stack(regression.power_sums(rates, num_steps))


def _no_basis(features):
  """Returns the basis of a client with too many rows."""
  return np.zeros((len(features), 0)), np.zeros((2, 0))


# Building takes seconds; equal arguments share a process, which has no state.
@functools.cache
def _convex(
  num_features, num_classes=4, num_steps=_NUM_STEPS, step_size=_STEP_SIZE, **x
):
  model = linearized.build_feature_classifier(
    _network(num_classes),
    # Never called: clients are fed with features.
    lambda weights, x: tf.zeros([1, num_features]),
    num_features,
  )
  method = Convex(num_convex_steps=num_steps, convex_learning_rate=step_size)
  return method.build(model, **_OPTIMIZERS, **x)


def _set_weights(rounds, kernel, mean, std):
  """Sets V, without bias, and the features' mean and standard deviation."""
  weights = rounds.process.get_model_weights(rounds.state)
  *theta, _, _ = weights.non_trainable
  weights = tff.learning.models.ModelWeights(
    (np.float32(kernel), np.zeros(np.shape(kernel)[1], np.float32)),
    (*theta, np.float32(mean), np.float32(std)),
  )
  rounds.state = rounds.process.set_model_weights(rounds.state, weights)


def test_vector_v14():
  """Sums (9, 6), squares (35, 12), n 3; the second feature is constant."""
  sums = FeatureSums(num_features=2).build(_network(), **_OPTIMIZERS)
  data = [_batches([(1, 2), (3, 2)], [0, 1], rows=1), _batches([(5, 2)], [2])]
  empty = data[0].take(0)
  before = sums.initialize()
  output = sums.next(before, [*data, empty])
  found = output.state.client_work['method']
  np.testing.assert_array_equal(found['sums'], [9, 6])
  np.testing.assert_array_equal(found['square_sums'], [35, 12])
  assert found['num_rows'] == 3
  assert output.metrics['client_work']['num_dead'] == 1
  for weights, wanted in zip(
    sums.get_model_weights(output.state).trainable,
    sums.get_model_weights(before).trainable,
    strict=True,
  ):
    np.testing.assert_array_equal(weights, wanted)
  # 35/3 - 9 = 8/3 and 12/3 - 4 = 0, which counts as 1.
  mean, std = regression.normalization(3, np.array([9, 6]), np.array([35, 12]))
  np.testing.assert_allclose(mean, [3, 2])
  np.testing.assert_allclose(std, [(8 / 3) ** 0.5, 1])
  # So does a variance that is rounding.
  values = np.full([7, 1], 0.1)
  sums, squares = values.sum(axis=0), np.square(values).sum(axis=0)
  assert regression.normalization(7, sums, squares)[1] == 1.0


def test_vector_v8():
  # Gradients a_k (x - c_k) with a = (1, 2), M = 2, eta = 0.1. Rows +-1 of
  # classes 1 and 0: a = 1, c = -1/2. Rows +-2 and twice +-1 of classes 0 and 1:
  # a = 12/6, a c = (2 + 2 + 4) / 12, c = 1/3. With V = (x, -x) that is V8 in
  # x = -1/2 + s x', s = (1/3 + 1/2) / 3. The bias stays 0.
  none = np.zeros(1), np.ones(1)
  first, second = (
    np.array(rows)[:, np.newaxis] for rows in ([1, -1], [2, -2, 1, -1, 1, -1])
  )
  data = [
    _batches(first, [1, 0], _basis(first, *none, 2, 0.1)),
    # It takes the steps one by one.
    _batches(second, [0, 1] * 3, _no_basis(second)),
  ]
  rounds = Rounds(_convex(1, 2, 2, 0.1, client_weighting=_UNIFORM))
  _set_weights(rounds, [[-0.5, 0.5]], *none)
  scale = (1 / 3 + 1 / 2) / 3

  def in_vector(kernel):
    np.testing.assert_allclose(kernel[0, 1], -kernel[0, 0], rtol=1e-5)
    return (float(kernel[0, 0]) + 0.5) / scale

  for corrections, models, server in (
    ((0, 0), (0, 1.08), 0.54),
    ((2.7, -2.7), (0.9504, 0.9396), 0.945),
    ((2.673, -2.673), (1.27332, 1.20366), 1.23849),
    ((2.49885, -2.49885), (1.4779584, 1.4228406), 1.4503995),
  ):
    kernel, bias = rounds.run(data)
    np.testing.assert_allclose(in_vector(kernel), server, rtol=1e-4)
    np.testing.assert_allclose(bias, 0, atol=1e-6)
    kept = [rounds.kept[c] for c in (0, 1)]
    found = [in_vector(k['last_local'][0]) for k in kept]
    np.testing.assert_allclose(found, models, rtol=1e-4, atol=1e-5)
    found = [float(k['correction'][0][0, 0]) / scale for k in kept]
    np.testing.assert_allclose(found, corrections, rtol=1e-4, atol=1e-5)


def _problem():
  """Returns clients' features and classes, mean and std of all features."""
  random = np.random.RandomState(0)
  # Fewer rows than features; more, but of low rank; more than one batch.
  wide = random.normal(2.0, 3.0, size=(3, 5))
  low_rank = random.normal(size=(7, 2)) @ random.normal(size=(2, 5))
  clients = [
    (rows.astype(np.float16), random.randint(4, size=len(rows)))
    for rows in (wide, low_rank)
  ]
  rows = np.concatenate([z for z, _ in clients]).astype(np.float64)
  return clients, rows.mean(axis=0), rows.std(axis=0)


def test_rounds_are_those_of_algorithm_2():
  clients, mean, std = _problem()
  options = dict(num_steps=_NUM_STEPS, step_size=_STEP_SIZE)
  rounds = Rounds(_convex(5))
  _set_weights(rounds, np.zeros((5, 4)), mean, std)
  (wide, classes), (low_rank, others) = clients
  data = [
    _batches(wide, classes, _basis(wide, mean, std)),
    _batches(low_rank, others, _no_basis(low_rank)),
  ]
  server = np.zeros((6, 4))
  last, h = [server] * 2, [server] * 2
  for _ in range(3):
    for i, (z, labels) in enumerate(clients):
      h[i] = h[i] + (server - last[i]) / (_NUM_STEPS * _STEP_SIZE)
      targets = gram_reference.targets_of(labels, 4)
      last[i] = gram_reference.local_steps(
        z, mean, std, targets, server, h[i], **options
      )
    server = 0.3 * last[0] + 0.7 * last[1]
    found = np.vstack(rounds.run(data))
    np.testing.assert_allclose(found, server, rtol=1e-4, atol=1e-5)
    for i in (0, 1):
      kept = rounds.kept[i]
      correction, local = (
        np.vstack(kept['correction']),
        np.vstack(kept['last_local']),
      )
      np.testing.assert_allclose(correction, h[i], rtol=1e-4, atol=1e-4)
      np.testing.assert_allclose(local, last[i], rtol=1e-4, atol=1e-5)
  assert np.abs(h[0]).max() > 1e-3
  assert rounds.metrics['client_work']['imbalance'] < 1e-4


@pytest.mark.slow
def test_one_client_solves_its_regression():
  ((z, y), _), mean, std = _problem()
  num_steps = 80_000
  rounds = Rounds(_convex(5, num_steps=num_steps))
  _set_weights(rounds, np.zeros((5, 4)), mean, std)
  data = [_batches(z, y, _basis(z, mean, std, num_steps))]
  for _ in range(2):
    kernel, bias = rounds.run(data)
  # Three rows in six unknowns: the targets are met by the smallest V.
  z = np.concatenate([(z - mean) / std, np.ones((3, 1))], axis=1)
  wanted = np.linalg.pinv(z) @ gram_reference.targets_of(y, 4)
  np.testing.assert_allclose(np.vstack([kernel, bias]), wanted, atol=1e-3)
  assert rounds.metrics['client_work']['train']['accuracy'] == 1


def test_a_client_without_rows_changes_nothing():
  ((z, y), _), mean, std = _problem()
  data = _batches(z, y, _basis(z, mean, std))
  alone = Rounds(_convex(5)).run([data])
  beside = Rounds(_convex(5)).run([data, data.take(0)])
  for one, other in zip(alone, beside, strict=True):
    np.testing.assert_array_equal(one, other)


def test_gram_basis_by_chunks_of_columns(monkeypatch):
  random = np.random.default_rng(0)
  features = random.normal(2.0, 3.0, size=[8, 11])
  mean, std = features.mean(axis=0), features.std(axis=0)
  z = np.concatenate([(features - mean) / std, np.ones([8, 1])], axis=1)
  # Three columns at a time, the last time two.
  monkeypatch.setattr(regression, '_CHUNK_SIZE', 24)
  values, vectors = regression.gram_basis(features, mean, std)
  np.testing.assert_allclose((vectors * values) @ vectors.T, z @ z.T)
  np.testing.assert_allclose(vectors.T @ vectors, np.eye(8), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 600), st.floats(0.0, 2.0))
def test_power_sums(num_steps, x):
  powers = np.power(1 - x, np.arange(num_steps))
  found = regression.power_sums(np.array([x, 0.0]), num_steps)
  np.testing.assert_allclose(
    found,
    [
      [powers.sum(), num_steps],
      [np.cumsum(powers)[:-1].sum(), num_steps * (num_steps - 1) / 2],
    ],
    rtol=1e-8,
    atol=1e-8,
  )


@pytest.mark.filterwarnings('error')
def test_diverging_steps_are_not_finite_and_do_not_warn():
  assert not np.isfinite(regression.power_sums(np.array([50.0]), 4000)).any()
