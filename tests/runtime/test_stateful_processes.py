"""Stateful processes give in process what they give in TFF's own context."""

import linear_models
import numpy as np
import pytest
import stateful_rounds
import tensorflow as tf
import tensorflow_federated as tff

import tff_fedfish
from models.functional_model import ModelSpec
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True)
def context():
  return set_in_process_context()


def _model_with_features():
  def features(weights, x, unused_y):
    return x * weights[0][0], tf.ones(tf.shape(x)[:1])

  def draw():
    return (tf.constant([1.0, -2.0, 0.5]), tf.constant(0.5)), ()

  return ModelSpec(linear_models.linear_model(3), draw, features=features)


_OPTIONS = dict(
  client_optimizer=linear_models.sgd(0.1),
  server_optimizer=linear_models.sgd(1.0),
  num_local_epochs=2,
)
_PROCESSES = {
  'moon': lambda: tff_fedfish.build_moon(_model_with_features(), **_OPTIONS),
  'scaffold': lambda: tff_fedfish.build_scaffold(
    linear_models.linear_model(3), num_clients=5, **_OPTIONS
  ),
}


def _datasets():
  random = np.random.RandomState(3)
  return [
    linear_models.batches(
      random.normal(size=(size, 3)), random.normal(size=size), 2
    )
    for size in (3, 4, 2)
  ]


@pytest.mark.parametrize('name', _PROCESSES)
def test_rounds_and_client_outputs(name, stock_context):
  process, datasets = _PROCESSES[name](), _datasets()
  rounds = stateful_rounds.Rounds(process)
  kept, state = {}, None
  for _ in range(2):
    weights = rounds.run(datasets)
    clients = [
      stateful_rounds.argument(process, data, kept.get(i))
      for i, data in enumerate(datasets)
    ]
    with tff.framework.get_context_stack().install(stock_context):
      state = process.initialize() if state is None else state
      outputs = process.client_outputs(state, clients)
      state = process.next(state, clients).state
    expected = process.get_model_weights(state).trainable
    for found, wanted in zip(weights, expected, strict=True):
      np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    kept = dict(enumerate(outputs))
    for i, output in kept.items():
      assert output['is_valid'] == rounds.kept[i]['is_valid'] == 1
      for found, wanted in zip(
        tf.nest.flatten(rounds.kept[i]), tf.nest.flatten(output), strict=True
      ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
