"""SCAFFOLD as a learning process, against hand and FedAvg."""

import linear_models
import linear_rounds
import numpy as np
import pytest
import stateful_rounds
import tensorflow_federated as tff

import tff_fedfish
from tff_fedfish.optimizers import clip_by_global_norm

_UNIFORM = tff.learning.ClientWeighting.UNIFORM
_BY_ROWS = tff.learning.ClientWeighting.NUM_EXAMPLES


def _quadratics(curvatures, minima, num_rows=None):
  """Returns clients with the gradient a (theta - c): x^2 = a, y = x c."""
  return [
    linear_models.batches(count * [a**0.5], count * [a**0.5 * c], 8)
    for a, c, count in zip(
      curvatures, minima, num_rows or [1] * len(minima), strict=True
    )
  ]


def _build(build=tff_fedfish.build_scaffold, weighting=_UNIFORM, **options):
  return linear_rounds.process(
    build,
    linear_models.scalar_model,
    num_local_epochs=2,
    client_weighting=weighting,
    **options,
  )


def _server_variate(rounds):
  (variate,) = rounds.state.client_work['method']['control_variate']
  return float(variate)


def _corrections(rounds):
  """Returns h_i = c_i - c of the round to come."""
  return [
    float(rounds.kept[c]['control_variate'][0]) - _server_variate(rounds)
    for c in sorted(rounds.kept)
  ]


def test_vector_v8():
  # Gradients a_k (x - c_k), a = (1, 2), c = (0, 3), M = 2, eta = 0.1, uniform.
  # Round 1: client 2 goes 0 -> 0.6 -> 1.08, so x = 0.54, h_1 = 0.54 / 0.2 = 2.7
  # and h_2 = (0.54 - 1.08) / 0.2 = -2.7. Round 2: client 1 goes 0.54 -> 0.54 -
  # 0.1 (0.54 - 2.7) = 0.756 -> 0.9504.
  server = (0.54, 0.945, 1.23849, 1.4503995)
  h = ((0.0, 0.0), (2.7, -2.7), (2.673, -2.673), (2.49885, -2.49885))
  rounds = stateful_rounds.Rounds(_build())
  for num in range(4):
    before = _corrections(rounds) or 2 * [0.0]
    (theta,) = rounds.run(_quadratics((1, 2), (0, 3)))
    np.testing.assert_allclose(theta, server[num], rtol=1e-5)
    np.testing.assert_allclose(before, h[num], rtol=1e-4, atol=1e-6)
  for _ in range(30):
    (theta,) = rounds.run(_quadratics((1, 2), (0, 3)))
    # sum w h = 0
    assert abs(sum(_corrections(rounds))) < 1e-4
  # (1 * 0 + 2 * 3) / 3; FedAvg goes to 0.36 * 3 / (0.19 + 0.36) = 1.9636.
  np.testing.assert_allclose(theta, 2.0, rtol=2e-3)


def test_one_client_of_four():
  # c_1 = (0 - 1.08) / (2 * 0.1) = -5.4; c = 1/4 * -5.4.
  rounds = stateful_rounds.Rounds(_build(num_clients=4))
  rounds.run(_quadratics((1, 2), (0, 3)), [1])
  # It also keeps its weight.
  kept = rounds.kept[1]['control_variate']
  np.testing.assert_allclose(kept, [-5.4, 1.0], rtol=1e-6)
  np.testing.assert_allclose(_server_variate(rounds), -5.4 / 4, rtol=1e-6)


@pytest.mark.slow
def test_unlike_weights_in_cohorts_reach_the_optimum_of_all():
  # Weights 1, 3, 9: (1 * 1 * 0 + 3 * 2 * 3 + 9 * 4 * -1) / (1 + 6 + 36). FedAvg
  # of all goes to (3 * 0.36 * 3 - 9 * 0.64) / (0.19 + 3 * 0.36 + 9 * 0.64) =
  # -0.358.
  clients = _quadratics((1, 2, 4), (0, 3, -1), (1, 3, 9))
  rounds = stateful_rounds.Rounds(_build(weighting=_BY_ROWS, num_clients=3))
  random = np.random.RandomState(1)
  for _ in range(60):
    (theta,) = rounds.run(clients, sorted(random.permutation(3)[:2]))
  np.testing.assert_allclose(theta, -18 / 43, rtol=2e-3)
  # c is the mean of what the clients keep, whoever came last.
  kept = [rounds.kept[c]['control_variate'][0] for c in range(3)]
  np.testing.assert_allclose(
    _server_variate(rounds), np.average(kept, weights=(1, 3, 9)), atol=1e-5
  )


def test_first_round_is_fed_avg():
  clients = [
    linear_models.batches(x[:, 0], y, 2)
    for x, y in linear_models.three_clients()
  ]
  fed_avg = _build(tff_fedfish.build_fed_avg)
  expected, _ = linear_rounds.trained(fed_avg, clients)
  found = stateful_rounds.Rounds(_build()).run(clients)
  np.testing.assert_array_equal(found, expected)


def test_a_client_that_is_not_finite_changes_nothing_of_others():
  clients = _quadratics((1, 2), (0, 3))
  broken = [*clients, linear_models.batches([1.0], [np.inf], 8)]
  rounds, expected = (stateful_rounds.Rounds(_build()) for _ in range(2))
  for _ in range(2):
    np.testing.assert_array_equal(rounds.run(broken), expected.run(clients))
  assert sorted(rounds.kept) == [0, 1]
  counts = rounds.metrics['client_work']['clients']
  assert counts['num_non_finite_clients'] == 1
  # A round without clients leaves c.
  before = _server_variate(rounds)
  rounds.run(broken, [2])
  assert _server_variate(rounds) == before != 0


@pytest.mark.parametrize(
  'optimizer',
  [
    linear_models.adam(0.1),
    tff.learning.optimizers.build_sgdm(0.1, momentum=0.9),
    clip_by_global_norm(linear_models.sgd(0.1), 1.0),
  ],
)
def test_variates_of_other_steps_are_refused(optimizer):
  with pytest.raises(ValueError, match='`client_optimizer` must be plain SGD'):
    tff_fedfish.build_scaffold(
      linear_models.linear_model(3),
      client_optimizer=optimizer,
      server_optimizer=linear_models.sgd(1.0),
    )
