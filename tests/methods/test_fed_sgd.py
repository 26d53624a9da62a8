"""FedSGD as a learning process: the gradient over the union of the data."""

import linear_models
import linear_rounds
import numpy as np
import planned_configs
import pytest
import tensorflow_federated as tff
from linear_rounds import datasets, gradient, trained

import tff_fedfish
from tff_fedfish.errors import UserError

_SMALL_STEPS = linear_models.sgd(0.2)
_clients = linear_models.three_clients


def _build(**options):
  return linear_rounds.process(tff_fedfish.build_fed_sgd, **options)


def test_equals_steps_on_the_union():
  x, y = map(np.concatenate, zip(*_clients(), strict=True))
  theta = np.zeros(3)
  for _ in range(3):
    theta -= 0.2 * gradient(theta, x, y)
  found, output = trained(
    _build(server_optimizer=_SMALL_STEPS),
    datasets(_clients()),
    num_rounds=3,
  )
  np.testing.assert_allclose(found, theta, rtol=1e-5)
  assert output.metrics['client_work']['clients']['num_empty_clients'] == 0


def test_uniform_clients_weigh_the_same_and_take_no_steps_of_an_optimizer():
  process = _build(
    client_optimizer=linear_models.adam(0.1),
    client_weighting=tff.learning.ClientWeighting.UNIFORM,
  )
  gradients = [gradient(np.zeros(3), x, y) for x, y in _clients()]
  found, output = trained(process, datasets(_clients()))
  np.testing.assert_allclose(found, -np.mean(gradients, axis=0), rtol=1e-5)
  # Its hyperparameters can be set, as those of other methods.
  hparams = process.get_hparams(output.state)
  hparams['client_work']['learning_rate'] = 0.5
  changed = process.set_hparams(output.state, hparams)
  assert changed.client_work['learning_rate'] == np.float32(0.5)


def test_empty_and_diverged_clients_count_as_absent():
  process, clients = _build(server_optimizer=_SMALL_STEPS), _clients()
  empty = (np.zeros([0, 2], np.float32), np.zeros([0], np.float32))
  broken = (np.full([2, 2], np.nan, np.float32), np.zeros([2], np.float32))
  found, output = trained(process, datasets([empty, *clients, broken]))
  expected, _ = trained(process, datasets(clients))
  np.testing.assert_array_equal(found, expected)
  counts = output.metrics['client_work']['clients']
  assert counts['num_empty_clients'] == counts['num_non_finite_clients'] == 1


def test_bound_is_on_the_clients_gradient():
  clients = _clients()[:1]
  expected = gradient(np.zeros(3), *clients[0])
  found, output = trained(_build(max_delta_norm=0.5), datasets(clients))
  np.testing.assert_allclose(
    found, -0.5 * expected / np.linalg.norm(expected), rtol=1e-5
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
