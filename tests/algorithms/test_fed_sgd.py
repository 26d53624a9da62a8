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
_linear_model = functools.cache(linear_models.linear_model)


def _build(build=None, *, client=None, server=None, model=None, **options):
  return (build or tff_fedfish.build_fed_sgd)(
    model or _linear_model(2),
    client_optimizer=client or _sgd(0.3),
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


def _clients():
  random = np.random.RandomState(4)
  clients = []
  for size in (3, 7, 4):
    x = random.normal(size=(size, 2)).astype(np.float32)
    y = (x @ [1, 2] + random.normal(size=size)).astype(np.float32)
    clients.append((x, y))
  return clients


def _datasets(clients, batch_size=2):
  return [linear_models.batches(x, y, batch_size) for x, y in clients]


def _gradient(theta, x, y):
  residual = x @ theta[:2] + theta[2] - y
  return 2 * np.append(x.T @ residual, residual.sum()) / len(y)


@pytest.fixture(scope='module')
def process(_in_process):
  return _build(server=_sgd(0.2))


def test_equals_steps_on_the_union(process):
  x, y = map(np.concatenate, zip(*_clients(), strict=True))
  theta = np.zeros(3)
  for _ in range(3):
    theta -= 0.2 * _gradient(theta, x, y)
  found, output = _run(process, _datasets(_clients()), num_rounds=3)
  np.testing.assert_allclose(found, theta, rtol=1e-5)
  assert output.metrics['client_work']['clients']['num_empty_clients'] == 0


def test_uniform_clients_weigh_the_same():
  process = _build(client_weighting=tff.learning.ClientWeighting.UNIFORM)
  gradients = [_gradient(np.zeros(3), x, y) for x, y in _clients()]
  found, _ = _run(process, _datasets(_clients()))
  np.testing.assert_allclose(found, -np.mean(gradients, axis=0), rtol=1e-5)


def test_equals_fed_avg_with_one_full_batch_and_rate_1():
  # theta_G - (theta_G - 1 g_i) = g_i
  datasets = _datasets(_clients(), batch_size=8)
  found, _ = _run(_build(server=_adam(0.1)), datasets, num_rounds=3)
  expected, _ = _run(
    _build(tff_fedfish.build_fed_avg, client=_sgd(1.0), server=_adam(0.1)),
    datasets,
    num_rounds=3,
  )
  np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize('client', [_sgd(7.0), _adam(0.1)])
def test_client_optimizer_is_not_read(process, client):
  datasets = _datasets(_clients())
  found, output = _run(_build(client=client, server=_sgd(0.2)), datasets)
  expected, _ = _run(process, datasets)
  np.testing.assert_array_equal(found, expected)
  # Its hyperparameters can be set, as those of other methods.
  other = _build(client=client, server=_sgd(0.2))
  hparams = other.get_hparams(output.state)
  hparams['client_work']['learning_rate'] = 0.5
  changed = other.set_hparams(output.state, hparams)
  assert changed.client_work['learning_rate'] == np.float32(0.5)


def test_empty_and_diverged_clients_count_as_absent(process):
  clients = _clients()
  empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
  broken = (np.full([2, 2], np.nan, np.float32), np.zeros([2], np.float32))
  found, output = _run(process, _datasets([empty, *clients, broken]))
  expected, _ = _run(process, _datasets(clients))
  np.testing.assert_array_equal(found, expected)
  counts = output.metrics['client_work']['clients']
  assert counts['num_empty_clients'] == counts['num_non_finite_clients'] == 1
  start, output = _run(process, _datasets([empty]))
  np.testing.assert_array_equal(start, np.zeros(3))
  assert output.metrics['finalizer']['update_is_all_zero'] == 1


def test_bound_is_on_the_clients_gradient():
  clients = _clients()[:1]
  gradient = _gradient(np.zeros(3), *clients[0])
  found, output = _run(_build(max_delta_norm=0.5), _datasets(clients))
  np.testing.assert_allclose(
    found, -0.5 * gradient / np.linalg.norm(gradient), rtol=1e-5
  )
  counts = output.metrics['client_work']['clients']
  assert counts['num_clipped_clients'] == 1


@pytest.mark.parametrize(
  ('options', 'found'),
  [
    (dict(num_local_epochs=2), '2 and None'),
    (dict(num_local_steps=4), '1 and 4'),
  ],
)
def test_local_steps_are_refused(options, found):
  with pytest.raises(
    ValueError,
    match='`num_local_epochs` must be 1 and `num_local_steps` None, found '
    + found,
  ):
    _build(**options)


def test_settings_of_local_steps_are_refused_at_once():
  with pytest.raises(UserError) as caught:
    planned_configs.shipped(
      'demo',
      algorithm__name='fed_sgd',
      client_work__num_local_epochs=2,
      client_work__optimizer='adamw',
      client_work__max_gradient_norm=0.5,
      client_work__learning_rate_schedule='cosine',
      client_work__schedule_rounds=5,
    )
  text = str(caught.value)
  for setting, wanted, found in (
    ('num_local_epochs', 1, 2),
    ('optimizer', 'sgd', "'adamw'"),
    ('max_gradient_norm', None, 0.5),
    ('learning_rate_schedule', 'constant', "'cosine'"),
    ('schedule_rounds', None, 5),
  ):
    assert (
      f'`config.client_work.{setting}` must be {wanted} with algorithm.name '
      f"'fed_sgd', whose clients take no local steps, found {found}"
    ) in text
  planned_configs.shipped('demo', algorithm__name='fed_sgd')
