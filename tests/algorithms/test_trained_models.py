"""The models of a cohort's clients, beside the rounds made of them."""

import functools

import linear_models
import numpy as np
import pytest
import tensorflow_federated as tff

from tff_fedfish.methods.fed_avg import build_fed_avg
from tff_fedfish.methods.fed_fish.process import build_fed_fish
from tff_fedfish.methods.fed_prox import build_fed_prox
from tff_fedfish.runtime.in_process_context import set_in_process_context

_UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.fixture(autouse=True)
def context():
  return set_in_process_context()


def _build(build, *, model=None, client_optimizer=None, **options):
  return build(
    model or linear_models.linear_model(2),
    client_optimizer=client_optimizer or linear_models.sgd(0.1),
    server_optimizer=linear_models.sgd(1.0),
    **options,
  )


def _datasets(sizes=(3, 7, 4)):
  random = np.random.RandomState(4)
  return [
    linear_models.batches(
      random.normal(size=(size, 2)), random.normal(size=size), 2
    )
    for size in sizes
  ]


def _scalar_datasets():
  return [
    linear_models.batches([1.0, 1.0], [2.0, 4.0], 2),
    linear_models.batches([2.0], [-2.0], 2),
  ]


def _weights(process, state):
  trainable = process.get_model_weights(state).trainable
  return [np.asarray(weight) for weight in trainable]


def test_by_hand():
  # One step of 0.5 from theta = 0 on the mean of (theta x - y)^2 / 2:
  # gradients -(2 + 4) / 2 = -3 and 2 * 2 = 4.
  process = _build(
    build_fed_avg,
    model=linear_models.scalar_model(),
    client_optimizer=linear_models.sgd(0.5),
  )
  assert isinstance(process, tff.learning.templates.LearningProcess)
  state = process.initialize()
  found = process.trained_models(state, _scalar_datasets())
  assert [client['trainable'] for client in found] == [(1.5,), (-2.0,)]
  assert [client['update'] for client in found] == [(-1.5,), (2.0,)]
  assert [client['client_weight'] for client in found] == [2.0, 1.0]
  # The rates of the round are those of the state.
  hparams = process.get_hparams(state)
  hparams['client_work']['learning_rate'] = 0.25
  slower = process.set_hparams(state, hparams)
  found = process.trained_models(slower, _scalar_datasets())
  assert [client['trainable'] for client in found] == [(0.75,), (-1.0,)]


@pytest.mark.parametrize(
  ('build', 'options'),
  [
    (build_fed_avg, dict(num_local_epochs=2)),
    (build_fed_avg, dict(num_local_steps=1, client_weighting=_UNIFORM)),
    # From the second round on with a mu of its own.
    (build_fed_prox, dict(mu=1.0, adaptation='fl4health', num_local_epochs=3)),
  ],
  ids=['fed_avg', 'fed_avg_one_step', 'fed_prox'],
)
def test_next_model_is_their_weighted_mean(build, options):
  process = _build(build, **options)
  state = process.initialize()
  for _ in range(3):
    found = process.trained_models(state, _datasets())
    state = process.next(state, _datasets()).state
    weights = [client['client_weight'] for client in found]
    for i, weight in enumerate(_weights(process, state)):
      np.testing.assert_allclose(
        weight,
        np.average([c['trainable'][i] for c in found], axis=0, weights=weights),
        rtol=1e-5,
        atol=1e-6,
      )


@pytest.mark.parametrize(
  'estimator', ['extra_pass', 'last_epoch', 'example_sq']
)
def test_sums_of_fishers_and_deltas_are_the_pseudo_gradient(estimator):
  process = _build(
    build_fed_fish,
    num_local_epochs=2,
    fisher_estimator=estimator,
    relative_floor=0.0,
  )
  state = process.initialize()
  found = process.trained_models(state, _datasets())
  before = _weights(process, state)
  after = _weights(process, process.next(state, _datasets()).state)
  for i in range(2):
    masses = [
      client['client_weight'] * client['update'].fisher_diagonal[i]
      for client in found
    ]
    deltas = [client['update'].model_delta[i] for client in found]
    step = np.sum(np.multiply(masses, deltas), 0) / np.sum(masses, 0)
    np.testing.assert_allclose(before[i] - after[i], step, rtol=1e-6, atol=1e-6)
    for client, delta in zip(found, deltas, strict=True):
      np.testing.assert_array_equal(before[i] - client['trainable'][i], delta)


def test_clients_without_weight():
  process = _build(build_fed_fish, model=linear_models.scalar_model())
  datasets = [
    linear_models.batches(np.zeros(0), np.zeros(0), 2),
    linear_models.batches([1.0], [np.inf], 2),
  ]
  empty, diverged = process.trained_models(process.initialize(), datasets)
  assert empty['client_weight'] == diverged['client_weight'] == 0
  assert empty['trainable'] == (0.0,)
  assert not np.isfinite(diverged['trainable'][0])
  assert diverged['update'].model_delta == (0.0,)
  assert diverged['update'].fisher_diagonal == (0.0,)


def test_one_graph_for_clients_of_any_size(context):
  optimizer = linear_models.sgd(0.1)
  num_traces = 0
  plain = optimizer.next

  @functools.wraps(plain)
  def counting(*arguments):
    nonlocal num_traces
    num_traces += 1
    return plain(*arguments)

  optimizer.next = counting
  process = _build(build_fed_avg, client_optimizer=optimizer)
  state = process.initialize()
  before = num_traces
  process.trained_models(state, _datasets([3]))
  first = num_traces
  assert first > before
  compiled = context.compile(process.trained_models)
  for size in (1, 8, 5):
    process.trained_models(state, _datasets([size]))
  assert num_traces == first
  assert context.compile(process.trained_models) is compiled


def test_not_traced_before_it_is_asked_for():
  process = _build(build_fed_avg)
  process.next(process.initialize(), _datasets())
  assert 'trained_models' not in vars(process)
