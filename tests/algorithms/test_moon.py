"""MOON as a learning process, against differences and FedAvg."""

import math

import linear_models
import numpy as np
import pytest
import stateful_rounds
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from models.functional_model import ModelSpec
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()


def _model(num_features=3):
  """The linear model, with x * kernel for a representation of each row."""
  model = linear_models.linear_model(num_features)

  def features(weights, x, unused_y):
    # The first row of a batch is padding.
    is_real = tf.cast(tf.range(tf.shape(x)[0]) > 0, tf.float32)
    return x * weights[0][0], is_real

  def draw():
    kernel = tf.constant(np.linspace(-1, 1, num_features), tf.float32)
    return (kernel, tf.constant(0.5)), ()

  return ModelSpec(model, draw, features=features)


def _build(build=tff_fedfish.build_moon, model=None, **options):
  return build(
    model or _model(),
    client_optimizer=linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    **options,
  )


def _data(size=5, seed=4):
  random = np.random.RandomState(seed)
  return random.normal(size=(size, 3)), random.normal(size=size)


def _loss(weights, start, previous, x, y, *, mu, temperature):
  """Returns the loss of a batch, in double precision."""

  def cosine(a, b):
    return (
      (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    )

  z, z_glob, z_prev = (x * w[:3] for w in (weights, start, previous))
  positive = cosine(z, z_glob) / temperature
  negative = cosine(z, z_prev) / temperature
  contrast = -np.log(np.exp(positive) / (np.exp(positive) + np.exp(negative)))
  data = np.mean((x @ weights[:3] + weights[3] - y) ** 2)
  return data + mu * contrast[1:].mean()


def _trained(start, previous, x, y, *, num_steps, **options):
  """Returns the weights after steps of 0.1 along central differences."""
  weights = start.copy()
  for _ in range(num_steps):
    gradient = np.array(
      [
        _loss(weights + step, start, previous, x, y, **options)
        - _loss(weights - step, start, previous, x, y, **options)
        for step in 1e-5 * np.eye(4)
      ]
    )
    weights = weights - 0.1 * gradient / 2e-5
  return weights


def test_two_rounds_by_differences():
  options = dict(mu=2.0, temperature=0.7)
  x, y = _data()
  dataset = linear_models.batches(x, y, 8)
  rounds = stateful_rounds.Rounds(_build(num_local_epochs=3, **options))
  # A second client moves the server's model away from the first one's.
  others = [dataset, linear_models.batches(*_data(5, seed=5), 8)]
  start = np.array([-1, 0.001, 1, 0.5])
  start[1] = 0.0
  found = rounds.run(others)
  # Once more from where the server is now.
  server = np.concatenate([np.ravel(w) for w in found])
  previous = np.concatenate(
    [np.ravel(w) for w in rounds.kept[0]['previous_model']]
  )
  rounds.run(others)
  expected = _trained(server, previous, x, y, num_steps=3, **options)
  kept = rounds.kept[0]['previous_model']
  np.testing.assert_allclose(
    np.concatenate([np.ravel(w) for w in kept]), expected, rtol=1e-4, atol=1e-5
  )
  # FedAvg would have gone elsewhere.
  plain = _trained(server, previous, x, y, num_steps=3, mu=0.0, temperature=1.0)
  assert np.abs(expected - plain).max() > 0.01


def test_first_round_is_fed_avg():
  # z_prev = z_glob: the contrastive loss is log 2, its gradient 0.
  clients = [linear_models.batches(*_data(size, size), 2) for size in (3, 5)]
  rounds = stateful_rounds.Rounds(_build(mu=3.0, num_local_epochs=2))
  process = _build(tff_fedfish.build_fed_avg, num_local_epochs=2)
  expected = process.get_model_weights(
    process.next(process.initialize(), clients).state
  ).trainable
  for found, wanted in zip(rounds.run(clients), expected, strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_mu_0_is_fed_avg_bit_for_bit():
  clients = [linear_models.batches(*_data(size, size), 2) for size in (3, 5)]
  rounds = stateful_rounds.Rounds(_build(mu=0.0, num_local_epochs=2))
  process = _build(tff_fedfish.build_fed_avg, num_local_epochs=2)
  state = process.initialize()
  for _ in range(3):
    state = process.next(state, clients).state
    expected = process.get_model_weights(state).trainable
    for found, wanted in zip(rounds.run(clients), expected, strict=True):
      np.testing.assert_array_equal(found, wanted)


def test_a_client_keeps_its_last_model():
  clients = [linear_models.batches(*_data(size, size), 2) for size in (3, 5)]
  rounds = stateful_rounds.Rounds(_build())
  rounds.run(clients)
  first = rounds.kept[1]['previous_model']
  rounds.run(clients, [0])
  assert rounds.kept[1]['previous_model'] is first
  models = rounds.process.trained_models(
    rounds.state,
    [stateful_rounds.argument(rounds.process, clients[1], rounds.kept[1])],
  )
  rounds.run(clients, [1])
  for kept, trained in zip(
    rounds.kept[1]['previous_model'], models[0]['trainable'], strict=True
  ):
    np.testing.assert_array_equal(kept, trained)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'mu': -1.0}, '`mu` must be a number of at least 0, found -1.0'),
    ({'mu': math.nan}, '`mu` must be a number of at least 0, found nan'),
    ({'temperature': 0.0}, '`temperature` must be a number above 0, found 0'),
  ],
)
def test_arguments(options, message):
  with pytest.raises(ValueError, match=message):
    _build(**options)


def test_a_model_without_representation():
  with pytest.raises(TypeError, match='with `features`, found FunctionalModel'):
    _build(model=linear_models.linear_model(3))


class TestOptimizerState:
  """AdamW's moments that clients keep, against one long training."""

  def _process(self, build, **options):
    return build(
      linear_models.linear_model(3),
      client_optimizer=tff.learning.optimizers.build_adam(0.1),
      # The server's model becomes the only client's.
      server_optimizer=linear_models.sgd(1.0),
      **options,
    )

  @pytest.mark.parametrize(
    'build',
    [
      tff_fedfish.build_fed_avg,
      # FedProx differs in its loss only, which test_fed_prox.py has.
      pytest.param(tff_fedfish.build_fed_prox, marks=pytest.mark.slow),
    ],
  )
  def test_two_rounds_are_one_of_twice_the_epochs(self, build):
    dataset = linear_models.batches(*_data(), 2)
    rounds = stateful_rounds.Rounds(
      self._process(build, num_local_epochs=3, keeps_optimizer_state=True)
    )
    rounds.run([dataset])
    found = rounds.run([dataset])
    longer = self._process(build, num_local_epochs=6)
    expected = longer.get_model_weights(
      longer.next(longer.initialize(), [dataset]).state
    ).trainable
    fresh = self._process(build, num_local_epochs=3)
    state = fresh.initialize()
    for _ in range(2):
      state = fresh.next(state, [dataset]).state
    for weight, wanted, forgotten in zip(
      found, expected, fresh.get_model_weights(state).trainable, strict=True
    ):
      np.testing.assert_allclose(weight, wanted, rtol=2e-6)
      assert np.abs(np.subtract(weight, forgotten)).max() > 0.01

  def test_rate_of_the_round_is_the_servers(self):
    process = self._process(
      tff_fedfish.build_fed_avg, keeps_optimizer_state=True
    )
    rounds = stateful_rounds.Rounds(process)
    dataset = linear_models.batches(*_data(), 2)
    before = rounds.run([dataset])
    hparams = process.get_hparams(rounds.state)
    hparams['client_work']['learning_rate'] = 0.0
    rounds.state = process.set_hparams(rounds.state, hparams)
    for found, wanted in zip(rounds.run([dataset]), before, strict=True):
      np.testing.assert_array_equal(found, wanted)

  def test_slots(self):
    process = self._process(
      tff_fedfish.build_fed_avg, keeps_optimizer_state=True
    )
    shapes = sorted(
      tuple(spec.shape)
      for spec in process.kept_specs['optimizer']
      if spec.shape.rank
    )
    # Both moments of the kernel; those of the bias are scalars.
    assert shapes == [(3,), (3,)]
