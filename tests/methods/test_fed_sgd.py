"""FedSGD as a learning process: the gradient over the union of the data."""

import functools

import linear_models
import numpy as np
import planned_configs
import pytest
import tensorflow_federated as tff

import tff_fedfish
from tff_fedfish.errors import UserError
from tff_fedfish.runtime.in_process_context import set_in_process_context


@pytest.fixture(autouse=True, scope='module')
def _in_process():
  set_in_process_context()


_sgd = functools.cache(linear_models.sgd)
_adam = functools.cache(linear_models.adam)


@functools.cache
def _build(*, client=None, server=None, **options):
  return tff_fedfish.build_fed_sgd(
    linear_models.linear_model(2),
    client_optimizer=client,
    server_optimizer=server or _sgd(1.0),
    **options,
  )


def _run(process, datasets, num_rounds=1):
  state = process.initialize()
  for _ in range(num_rounds):
    output = process.next(state, datasets)
    state = output.state
  trainable = process.get_model_weights(state).trainable
  return np.append(*map(np.asarray, trainable)), output


def _datasets(clients):
  return [linear_models.batches(x, y, 2) for x, y in clients]


def _gradient(theta, x, y):
  residual = x @ theta[:2] + theta[2] - y
  return 2 * np.append(x.T @ residual, residual.sum()) / len(y)


def test_equals_steps_on_the_union():
  x, y = map(np.concatenate, zip(*linear_models.three_clients(), strict=True))
  theta = np.zeros(3)
  for _ in range(3):
    theta -= 0.2 * _gradient(theta, x, y)
  found, output = _run(
    _build(server=_sgd(0.2)),
    _datasets(linear_models.three_clients()),
    num_rounds=3,
  )
  np.testing.assert_allclose(found, theta, rtol=1e-5)
  assert output.metrics['client_work']['clients']['num_empty_clients'] == 0


def test_uniform_clients_weigh_the_same():
  process = _build(client_weighting=tff.learning.ClientWeighting.UNIFORM)
  gradients = [
    _gradient(np.zeros(3), x, y) for x, y in linear_models.three_clients()
  ]
  found, _ = _run(process, _datasets(linear_models.three_clients()))
  np.testing.assert_allclose(found, -np.mean(gradients, axis=0), rtol=1e-5)


def test_client_optimizer_is_not_read():
  process = _build(client=_adam(0.1), server=_sgd(0.2))
  found, output = _run(process, _datasets(linear_models.three_clients()))
  expected, _ = _run(
    _build(server=_sgd(0.2)), _datasets(linear_models.three_clients())
  )
  np.testing.assert_array_equal(found, expected)
  # Its hyperparameters can be set, as those of other methods.
  hparams = process.get_hparams(output.state)
  hparams['client_work']['learning_rate'] = 0.5
  changed = process.set_hparams(output.state, hparams)
  assert changed.client_work['learning_rate'] == np.float32(0.5)


def test_empty_and_diverged_clients_count_as_absent():
  process, clients = _build(server=_sgd(0.2)), linear_models.three_clients()
  empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
  broken = (np.full([2, 2], np.nan, np.float32), np.zeros([2], np.float32))
  found, output = _run(process, _datasets([empty, *clients, broken]))
  expected, _ = _run(process, _datasets(clients))
  np.testing.assert_array_equal(found, expected)
  counts = output.metrics['client_work']['clients']
  assert counts['num_empty_clients'] == counts['num_non_finite_clients'] == 1


def test_bound_is_on_the_clients_gradient():
  clients = linear_models.three_clients()[:1]
  gradient = _gradient(np.zeros(3), *clients[0])
  found, output = _run(_build(max_delta_norm=0.5), _datasets(clients))
  np.testing.assert_allclose(
    found, -0.5 * gradient / np.linalg.norm(gradient), rtol=1e-5
  )
  counts = output.metrics['client_work']['clients']
  assert counts['num_clipped_clients'] == 1


def test_settings_of_local_steps_are_refused_at_once():
  with pytest.raises(UserError) as caught:
    planned_configs.shipped(
      'demo',
      algorithm__name='fed_sgd',
      client_work__num_local_epochs=2,
      client_work__optimizer='adamw',
      client_work__learning_rate_schedule='cosine',
      client_work__schedule_rounds=5,
    )
  text = str(caught.value)
  for setting, wanted, found in (
    ('num_local_epochs', 1, 2),
    ('optimizer', 'sgd', "'adamw'"),
    ('learning_rate_schedule', 'constant', "'cosine'"),
    ('schedule_rounds', None, 5),
  ):
    assert (
      f'`config.client_work.{setting}` must be {wanted} with algorithm.name '
      f"'fed_sgd', whose clients take no local steps, found {found}"
    ) in text
  planned_configs.shipped('demo', algorithm__name='fed_sgd')
