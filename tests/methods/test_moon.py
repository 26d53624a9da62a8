"""MOON as a learning process, against differences and FedAvg."""

import functools

import linear_models
import linear_rounds
import numpy as np
import pytest
import stateful_rounds
import tensorflow as tf
from linear_rounds import flat

import tff_fedfish
from models.functional_model import ModelSpec

_OPTIONS = dict(mu=2.0, temperature=0.7)


def _model():
  """The linear model, with x * kernel for a representation of each row."""
  model = linear_models.linear_model(3)

  def features(weights, x, unused_y):
    # The first row of a batch is padding.
    is_real = tf.cast(tf.range(tf.shape(x)[0]) > 0, tf.float32)
    return x * weights[0][0], is_real

  def draw():
    kernel = tf.constant(np.linspace(-1, 1, 3), tf.float32)
    return (kernel, tf.constant(0.5)), ()

  return ModelSpec(model, draw, features=features)


def _build(build=tff_fedfish.build_moon, **options):
  return linear_rounds.process(build, _model, num_local_epochs=3, **options)


def _data(size, seed):
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


def _clients():
  return [
    linear_models.batches(*_data(size, seed), 8)
    for size, seed in ((5, 4), (3, 5))
  ]


def test_two_rounds_by_differences():
  rounds = stateful_rounds.Rounds(_build(**_OPTIONS))
  clients = _clients()
  # A second client moves the server's model away from the first one's.
  server = flat(rounds.run(clients))
  previous = flat(rounds.kept[0]['previous_model'])
  rounds.run(clients)
  trained = functools.partial(
    _trained, server, previous, *_data(5, 4), num_steps=3
  )
  expected = trained(**_OPTIONS)
  np.testing.assert_allclose(
    flat(rounds.kept[0]['previous_model']), expected, rtol=1e-4, atol=1e-5
  )
  # FedAvg would have gone elsewhere.
  plain = trained(mu=0.0, temperature=1.0)
  assert np.abs(expected - plain).max() > 0.01


def test_is_fed_avg_in_the_first_round_and_with_mu_0():
  # z_prev = z_glob: the contrastive loss is log 2, its gradient 0.
  clients = _clients()
  average = _build(tff_fedfish.build_fed_avg)
  for options, num_rounds in ((_OPTIONS, 1), (dict(mu=0.0), 2)):
    rounds = stateful_rounds.Rounds(_build(**options))
    state = average.initialize()
    for _ in range(num_rounds):
      state = average.next(state, clients).state
      expected = average.get_model_weights(state).trainable
      np.testing.assert_allclose(
        flat(rounds.run(clients)), flat(expected), rtol=1e-6
      )


def test_a_client_keeps_its_last_model():
  clients = _clients()
  rounds = stateful_rounds.Rounds(_build(**_OPTIONS))
  rounds.run(clients)
  first = rounds.kept[1]['previous_model']
  rounds.run(clients, [0])
  assert rounds.kept[1]['previous_model'] is first
  models = rounds.process.trained_models(
    rounds.state,
    [stateful_rounds.argument(rounds.process, clients[1], rounds.kept[1])],
  )
  rounds.run(clients, [1])
  np.testing.assert_array_equal(
    flat(rounds.kept[1]['previous_model']), flat(models[0]['trainable'])
  )


def test_a_model_without_representation():
  with pytest.raises(TypeError, match='with `features`, found FunctionalModel'):
    tff_fedfish.build_moon(
      linear_models.linear_model(3),
      client_optimizer=linear_models.sgd(0.1),
      server_optimizer=linear_models.sgd(1.0),
    )
