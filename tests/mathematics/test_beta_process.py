"""PFNM's matching: gains by hand and by densities, planted neurons, limits."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tff_fedfish.methods.one_shot.beta_process import (
  BetaProcess,
  gains,
  match_clients,
)


def _num_neurons(places):
  return len(np.unique(np.concatenate(places)))


def _shuffled_copies(rows, num_clients, seed=0):
  """Returns permutations, the first one in order, and the permuted rows."""
  random = np.random.default_rng(seed)
  orders = [np.arange(len(rows))]
  orders += [random.permutation(len(rows)) for _ in range(num_clients - 1)]
  return orders, [rows[order] for order in orders]


class TestGains:
  def test_by_hand(self):
    # sigma^2 = 4, sigma0^2 = 1, mu0 = 2, gamma = 3, J = 4, D = 2.
    # tau = 1 + m / 4: 1.25 for m = 1 and 1.75 for m = 3.
    # t = (2 + S / 4) / tau: S = (3, -2): (2.75, 1.5) / 1.25 = (2.2, 1.2);
    #   S = (-1, 6): (1.75, 3.5) / 1.75 = (1, 2).
    # s = 4 + 1 / tau: 4.8 and 4 + 4 / 7 = 32 / 7; s_0 = 5.
    # v = (1.2, 2.2), squared distances 1 + 1 = 2, 0.04 + 0.04 = 0.08,
    #   and from (2, 2) 0.64 + 0.04 = 0.68.
    # log(1 / 3), log(3 / 1); log(3 / 4) - log 1, log(3 / 4) - log 2.
    found = gains(
      np.array([[1.2, 2.2]]),
      np.array([[3.0, -2.0], [-1.0, 6.0]]),
      np.array([1, 3]),
      BetaProcess(sigma=2, sigma0=1, gamma=3, mu0=2),
      num_clients=4,
      num_new=2,
    )
    new = -0.68 / 10 - math.log(5) + math.log(3 / 4)
    expected = [
      -2 / 9.6 - math.log(4.8) - math.log(3),
      -0.08 * 7 / 64 - math.log(32 / 7) + math.log(3),
      new,
      new - math.log(2),
    ]
    np.testing.assert_allclose(found, [expected], rtol=1e-12)

  def test_sums_are_the_joint_density_of_matches_and_neurons(self):
    # Against SciPy's densities of all neurons, for all matches of a client.
    random = np.random.default_rng(1)
    sigma, sigma0, gamma, mu0 = 0.6, 1.1, 1.7, -0.3
    dimensions, num_clients = 3, 4
    seen = [random.normal(size=(m, dimensions)) for m in (1, 3)]
    rows = random.normal(size=(3, dimensions))

    def neuron(vectors):
      """Returns log p of all clients' vectors of one global neuron."""
      m = len(vectors)
      covariance = sigma**2 * np.eye(m) + sigma0**2 * np.ones([m, m])
      return sum(
        stats.multivariate_normal.logpdf(v, np.full(m, mu0), covariance)
        for v in np.transpose(vectors)
      )

    def joint(places):
      score = 0.0
      for i, others in enumerate(seen):
        own = [rows[line] for line in range(3) if places[line] == i]
        score += neuron(np.vstack([others, *own]))
        chance = len(others) / num_clients
        score += stats.bernoulli.logpmf(len(own), chance)
      new = [line for line in range(3) if places[line] >= 2]
      score += sum(neuron(rows[[line]]) for line in new)
      return score + stats.poisson.logpmf(len(new), gamma / num_clients)

    gain = gains(
      rows,
      np.stack([others.sum(0) for others in seen]),
      np.array([1, 3]),
      BetaProcess(sigma, sigma0, gamma, mu0),
      num_clients=num_clients,
      num_new=3,
    )
    # New neurons are numbered from 2 on without gaps.
    matches = [
      places
      for places in itertools.permutations(range(5), 3)
      if sorted(p for p in places if p >= 2)
      == list(range(2, 2 + sum(p >= 2 for p in places)))
    ]
    differences = [
      joint(places) - gain[range(3), places].sum() for places in matches
    ]
    assert len(matches) > 20
    np.testing.assert_allclose(differences, differences[0], rtol=1e-9)


class TestMatches:
  def test_three_clients_by_hand(self):
    # Client 0 has a, b, c; client 1 nearly b, a; client 2 nearly c, d, a, e,
    # where all are far apart beside sigma.
    a, b, c, d, e = 10 * np.eye(5)
    vectors = [
      np.array([a, b, c]),
      np.array([b, a]) + 0.1,
      np.array([c, d, a, e]) - 0.1,
    ]
    places = match_clients(vectors, BetaProcess(sigma=0.1, sigma0=10))
    np.testing.assert_array_equal(places[0], [0, 1, 2])
    np.testing.assert_array_equal(places[1], [1, 0])
    np.testing.assert_array_equal(places[2], [2, 3, 0, 4])

  def test_one_client_keeps_its_order(self):
    rows = np.random.default_rng(0).normal(size=(6, 4))
    (places,) = match_clients([rows], BetaProcess())
    np.testing.assert_array_equal(places, np.arange(6))

  @pytest.mark.parametrize('num_clients', [2, 3, 5, 12])
  @pytest.mark.parametrize('scale', [1e-6, 0.05, 1.0])
  def test_same_neurons_in_any_order(self, num_clients, scale):
    rows = scale * np.random.default_rng(1).normal(size=(32, 9))
    orders, vectors = _shuffled_copies(rows, num_clients)
    for found, order in zip(
      match_clients(vectors, BetaProcess()), orders, strict=True
    ):
      np.testing.assert_array_equal(found, order)

  def test_same_neurons_of_few_dimensions(self):
    # D = 8: 0 + 4 log(4/3) = 1.1507 is below log 3.5 = 1.2528: one new neuron;
    # the second would gain log 1.75 = 0.5596.
    # At |v|^2 = 0.7 it is above: 0.7 / 6 + 1.1507 = 1.2674.
    rows = np.random.default_rng(1).normal(size=(5, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for squared_norm, expected in ((1e-9, 6), (0.5, 6), (0.7, 5)):
      vectors = [math.sqrt(squared_norm) * rows] * 2
      places = match_clients(vectors, BetaProcess())
      assert _num_neurons(places) == expected

  @pytest.mark.parametrize('dimensions', [25, 200])
  def test_planted_neurons_are_found(self, dimensions):
    # Each of five clients has 20 of 30 neurons, with noise a third of their
    # size; the process knows both.
    random = np.random.default_rng(2)
    neurons = random.normal(size=(30, dimensions))
    owned = [random.choice(30, 20, replace=False) for _ in range(5)]
    vectors = [
      neurons[own] + 0.3 * random.normal(size=(20, dimensions)) for own in owned
    ]
    places = match_clients(vectors, BetaProcess(sigma=0.3))
    found, planted = np.concatenate(places), np.concatenate(owned)
    pairs = set(zip(found, planted, strict=True))
    assert len(pairs) == len(set(found)) == len(set(planted))

  # One sweep over all clients is not enough for these.
  @pytest.mark.parametrize('seed', [3, 7])
  def test_each_client_has_its_best_matches(self, seed):
    random = np.random.default_rng(seed)
    vectors = [random.normal(size=(size, 2)) for size in (4, 3, 4, 4)]
    process = BetaProcess(sigma=0.8, sigma0=1.2, gamma=2.0, mu0=0.3)
    places = match_clients(vectors, process)
    for client, rows in enumerate(vectors):
      others = [j for j in range(4) if j != client]
      numbers, counts = np.unique(
        np.concatenate([places[j] for j in others]), return_counts=True
      )
      sums = np.stack(
        [
          sum(vectors[j][places[j] == i].sum(0) for j in others)
          for i in numbers
        ]
      )
      size = len(rows)
      gain = gains(rows, sums, counts, process, num_clients=4, num_new=size)
      choices = itertools.permutations(range(gain.shape[1]), size)
      best = gain[range(size), np.array(list(choices))].sum(1).max()
      columns = np.searchsorted(numbers, places[client])
      is_new = ~np.isin(places[client], numbers)
      columns[is_new] = len(numbers) + np.arange(is_new.sum())
      np.testing.assert_allclose(gain[range(size), columns].sum(), best)

  def test_different_neurons_stay_apart_up_to_the_limit(self):
    random = np.random.default_rng(4)
    vectors = [random.normal(size=(size, 60)) for size in (4, 6, 5)]
    process = BetaProcess(sigma=0.1)
    assert _num_neurons(match_clients(vectors, process)) == 15
    for limit in (6, 7, 14):
      places = match_clients(vectors, process, max_neurons=limit)
      assert np.max(np.concatenate(places)) == limit - 1
      assert [len(set(found)) for found in places] == [4, 6, 5]

  def test_same_arguments_same_matches(self):
    random = np.random.default_rng(5)
    vectors = [random.normal(size=(7, 3)) for _ in range(4)]
    before = [rows.copy() for rows in vectors]
    first, second = (match_clients(vectors, BetaProcess()) for _ in range(2))
    for found, again in zip(first, second, strict=True):
      np.testing.assert_array_equal(found, again)
    np.testing.assert_array_equal(vectors, before)

  @pytest.mark.parametrize(
    ('process', 'limit', 'wanted'),
    [
      (dict(sigma=0.0), None, '`sigma` must be positive, found 0.0'),
      (dict(sigma0=-1.0), None, '`sigma0` must be positive, found -1.0'),
      (dict(gamma=0.0), None, '`gamma` must be positive, found 0.0'),
      ({}, 3, '`max_neurons` must be at least 4, found 3'),
    ],
  )
  def test_refused_arguments(self, process, limit, wanted):
    vectors = [np.ones([4, 2]), np.ones([3, 2])]
    with pytest.raises(ValueError, match=wanted):
      match_clients(vectors, BetaProcess(**process), max_neurons=limit)
