"""Stateful processes give in process what they give in TFF's own context."""

import linear_models
import numpy as np
import personal_rounds
import pytest
import stateful_rounds
import tensorflow_federated as tff

import tff_fedfish
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True)
def context():
  return set_in_process_context()


_OPTIONS = dict(
  client_optimizer=linear_models.sgd(0.1),
  server_optimizer=linear_models.sgd(1.0),
  num_local_epochs=2,
)


def _datasets():
  random = np.random.RandomState(3)
  return [
    linear_models.batches(
      random.normal(size=(size, 3)), random.normal(size=size), 2
    )
    for size in (3, 4, 2)
  ]


def test_rounds(stock_context):
  process = tff_fedfish.build_scaffold(
    linear_models.linear_model(3), num_clients=5, **_OPTIONS
  )
  datasets = _datasets()
  rounds = stateful_rounds.Rounds(process)
  state = None
  for _ in range(2):
    clients = [
      stateful_rounds.argument(process, data, rounds.kept.get(i))
      for i, data in enumerate(datasets)
    ]
    weights = rounds.run(datasets)
    assert all(rounds.kept[i]['is_valid'] for i in range(3))
    with tff.framework.get_context_stack().install(stock_context):
      state = process.initialize() if state is None else state
      state = process.next(state, clients).state
    expected = process.get_model_weights(state).trainable
    for found, wanted in zip(weights, expected, strict=True):
      np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_client_outputs_outside_our_context(stock_context):
  with (
    tff.framework.get_context_stack().install(stock_context),
    pytest.raises(RuntimeError, match='require the context of `set_in_process'),
    tff_fedfish.collect_client_outputs(),
  ):
    pass


def test_models_of_clients_own(stock_context):
  process = tff_fedfish.build_fed_fomo(
    personal_rounds.with_loss(linear_models.linear_model(3)),
    num_clients=3,
    **_OPTIONS,
  )
  datasets = _datasets()
  rounds = personal_rounds.Rounds(process)
  rounds.run(datasets)
  models = [(n, rounds.kept[n]['model']) for n in range(3)]
  clients = [
    personal_rounds.argument(
      process,
      datasets[n],
      datasets[n],
      [models[n], *models[:n], *models[n + 1 :]],
      rounds.kept[n],
    )
    for n in range(3)
  ]
  begun = process.personal_models(rounds.state, clients)
  with tff.framework.get_context_stack().install(stock_context):
    state = process.initialize()
    stock_begun = process.personal_models(state, clients)
  rounds.run(datasets)
  for n, (mine, other) in enumerate(zip(begun, stock_begun, strict=True)):
    # What clients begin with becomes their baseline.
    for found in (mine, other):
      for tensor, expected in zip(
        found, rounds.kept[n]['baseline'], strict=True
      ):
        np.testing.assert_allclose(tensor, expected, rtol=1e-6, atol=1e-6)
  assert np.any(begun[0][0] != models[0][1][0])


def test_processes_whose_clients_share_a_model():
  process = tff_fedfish.build_scaffold(
    linear_models.linear_model(3), num_clients=5, **_OPTIONS
  )
  with pytest.raises(AttributeError, match='begin with the same model'):
    getattr(process, 'personal_models')  # noqa: B009
