"""FedProx as a learning process, against hand, NumPy and FedAvg."""

import linear_models
import linear_rounds
import numpy as np
import pytest

import tff_fedfish


def _build(build=tff_fedfish.build_fed_prox, **options):
  return linear_rounds.process(build, **dict(num_local_epochs=2) | options)


def _run(process, rounds):
  """Returns the weights and metrics after each round; rounds are cohorts."""
  state, weights, metrics = process.initialize(), [], []
  for datasets in rounds:
    output = process.next(state, datasets)
    state = output.state
    weights.append(linear_rounds.weights(process, state))
    metrics.append(output.metrics['client_work'])
  return weights, metrics


def _datasets():
  return linear_rounds.datasets(linear_models.three_clients())


def _by_numpy(clients, *, mu, num_rounds, num_local_epochs):
  theta = np.zeros(3)
  for _ in range(num_rounds):
    total = np.zeros(3)
    for x, y in clients:
      local = theta.copy()
      for start in [*range(0, len(y), 2)] * num_local_epochs:
        part = slice(start, start + 2)
        g = linear_rounds.gradient(local, x[part], y[part])
        local -= 0.1 * (g + mu * (local - theta))
      total += len(y) * local
    theta = total / sum(len(y) for _, y in clients)
  return theta


def test_equals_numpy():
  weights, _ = _run(_build(mu=0.7), [_datasets()] * 4)
  options = dict(num_rounds=4, num_local_epochs=2)
  expected = _by_numpy(linear_models.three_clients(), mu=0.7, **options)
  np.testing.assert_allclose(weights[-1], expected, rtol=1e-5)
  # The opposite sign, and none, are far away.
  for mu in (-0.7, 0.0):
    other = _by_numpy(linear_models.three_clients(), mu=mu, **options)
    assert np.max(np.abs(other - expected)) > 1e-2


def test_mu_zero_is_fed_avg():
  rounds = [_datasets()] * 3
  plain = _build(mu=0.0)
  average = _build(tff_fedfish.build_fed_avg)
  assert plain.initialize.type_signature == average.initialize.type_signature
  found, expected = _run(plain, rounds)[0], _run(average, rounds)[0]
  np.testing.assert_array_equal(found[-1], expected[-1])


# One row (1, y) at theta_G = 0 and E = 1: the loss is y^2 / 2, and the round
# takes theta to 0.1 y; a second client of -y takes it back, so that rounds
# have the losses that are asked for.
def _cohort(loss):
  y = np.sqrt(2 * loss)
  return [linear_models.batches([1.0], [sign * y], 1) for sign in (1, -1)]


_LOSSES = (1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.55, 0.4, 0.3, 0.2, 0.1, 0.2)


class TestAdaptation:
  @pytest.fixture
  def process(self):
    return _build(
      model=linear_models.scalar_model,
      mu=1.0,
      adaptation='fl4health',
      num_local_epochs=1,
    )

  def test_mu_follows_the_loss(self, process):
    _, metrics = _run(process, [_cohort(loss) for loss in _LOSSES])
    # What the clients of a round used: the fifth fall, of round 5, is felt in
    # round 6, the rise of round 8 in round 9, and that of 13 no more.
    np.testing.assert_allclose(
      [m['mu'] for m in metrics],
      (1, 1, 1, 1, 1, 0.9, 0.9, 0.9, 1, 1, 1, 1, 1),
      atol=1e-6,
    )
    np.testing.assert_allclose(
      [m['previous_loss'] for m in metrics], (np.inf, *_LOSSES[:-1]), rtol=1e-5
    )

  def test_clients_use_the_mu_of_the_round(self, process):
    # Loss (theta - 2)^2 / 2 from theta_G = 0, mu 1, rate 0.1:
    #   0 - 0.1 (-2 + 0) = 0.2; 0.2 - 0.1 (-1.8 + 0.2) = 0.36;
    #   0.36 - 0.1 (-1.64 + 0.36) = 0.488. The opposite sign: 0.2, 0.4, 0.6.
    # The losses are 2, 1.62 and 1.3448.
    client = linear_models.batches([1.0] * 3, [2.0] * 3, 1)
    weights, metrics = _run(process, [[client], _cohort(8), [client]])
    np.testing.assert_allclose(weights[0][0], 0.488, rtol=1e-6)
    np.testing.assert_allclose(
      metrics[1]['previous_loss'], 4.9648 / 3, rtol=1e-6
    )
    # The second round's loss is 8 + 0.488^2 / 2: mu is 1.1 in the third.
    np.testing.assert_allclose(metrics[2]['mu'], 1.1, rtol=1e-6)
    theta = start = float(weights[1][0])
    for _ in range(3):
      theta -= 0.1 * (theta - 2 + 1.1 * (theta - start))
    np.testing.assert_allclose(weights[2][0], theta, rtol=1e-6)
    # So do the models that they trained.
    state = process.initialize()
    for cohort in ([client], _cohort(8)):
      state = process.next(state, cohort).state
    (trained,) = process.trained_models(state, [client])
    np.testing.assert_allclose(trained['trainable'][0], theta, rtol=1e-6)

  def test_loss_is_the_plain_mean_over_clients(self, process):
    # Losses 2 and 0.5 of 1 and 3 rows: 1.25, and not 0.875. Client 2 takes one
    # step, as client 1 does. A client without data does not count.
    cohort = [
      linear_models.batches([1.0], [2.0], 3),
      linear_models.batches([1.0] * 3, [1.0] * 3, 3),
      linear_models.batches([], [], 3),
    ]
    _, metrics = _run(process, [cohort, cohort])
    np.testing.assert_allclose(metrics[1]['previous_loss'], 1.25, rtol=1e-6)

  @pytest.mark.parametrize(
    ('rows', 'mu', 'num_falls'),
    [
      # Nothing to compare: all is as it was, with one fall.
      ([], 1.0, 1),
      ([([], [])], 1.0, 1),
      # Diverged: a rise.
      ([([np.nan], [1.0])], 1.1, 0),
      # One of two did: the other's loss, 0.5, is a second fall.
      ([([np.nan], [1.0]), ([1.0], [1.0])], 1.0, 2),
    ],
  )
  def test_cohorts_without_a_loss(self, process, rows, mu, num_falls):
    cohort = [linear_models.batches(*client, 1) for client in rows]
    _, metrics = _run(process, [_cohort(2), cohort, _cohort(2)])
    np.testing.assert_allclose(metrics[2]['mu'], mu, rtol=1e-6)
    assert metrics[2]['num_falls'] == num_falls

  def test_hyperparameters_are_those_of_the_optimizer(self, process):
    state = process.initialize()
    hparams = process.get_hparams(state)
    assert list(hparams['client_work']) == ['learning_rate']
    hparams['client_work']['learning_rate'] = 0.2
    changed = process.set_hparams(state, hparams)
    assert changed.client_work['method']['mu'] == 1.0
    # From 0, one step of rate 0.2 towards 2.
    output = process.next(changed, [linear_models.batches([1.0], [2.0], 1)])
    theta = linear_rounds.weights(process, output.state)
    np.testing.assert_allclose(theta, 0.4, rtol=1e-6)
