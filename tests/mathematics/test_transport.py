"""Matched neurons by hand, by trying all orders and by linear programming."""

import itertools

import numpy as np
import pytest
from scipy import optimize, spatial

from tff_fedfish.methods.one_shot.transport import match


def test_three_neurons_by_hand():
  reference = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 10.0]])
  rows = np.array([[3.0, 3.0], [0.0, 9.0], [0.0, 1.0]])
  # Distances to the reference's neurons 0, 1 and 2:
  #   row 0: sqrt(18), 1, sqrt(58); row 1: 9, sqrt(34), 1; row 2: 1, sqrt(18), 9
  np.testing.assert_array_equal(match(reference, rows), [2, 0, 1])


def test_the_least_sum_and_not_the_nearest_neuron_first():
  reference = np.array([[0.0], [3.0]])
  rows = np.array([[-3.0], [1.0]])
  # Neuron 0 is nearest to row 1, but |0 - 1| + |3 + 3| = 7 is more than
  # |0 + 3| + |3 - 1| = 5.
  np.testing.assert_array_equal(match(reference, rows), [0, 1])


def test_distances_and_not_their_squares():
  # The second row is 3 from (0, 0): 49 / 36 + 275 / 36 = 9, and 5 from (3, 0):
  # (25 / 6)^2 + 275 / 36 = 25. In order 0 + 5 is less than 3 + 3, though
  # 0 + 25 is more than 9 + 9.
  reference = np.array([[0.0, 0.0], [3.0, 0.0]])
  rows = np.array([[0.0, 0.0], [-7 / 6, np.sqrt(275) / 6]])
  np.testing.assert_array_equal(match(reference, rows), [0, 1])


@pytest.mark.parametrize('seed', range(5))
def test_all_orders_and_the_transport_problem(seed):
  random = np.random.default_rng(seed)
  n = 5
  reference, rows = random.normal(size=(2, n, 3))
  costs = spatial.distance.cdist(reference, rows)
  permutation = match(reference, rows)
  found = costs[np.arange(n), permutation].sum()
  least = min(
    costs[np.arange(n), list(order)].sum()
    for order in itertools.permutations(range(n))
  )
  np.testing.assert_allclose(found, least, rtol=1e-12)
  # Plans with marginals 1 / n; the first row holds entries [0, 0] to [0, 4].
  sums = np.vstack(
    [np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))]
  )
  plan = optimize.linprog(
    costs.ravel(), A_eq=sums, b_eq=np.full(2 * n, 1 / n), method='highs'
  )
  np.testing.assert_allclose(found, n * plan.fun, rtol=1e-6)


def test_a_permuted_copy():
  random = np.random.default_rng(0)
  reference = random.normal(size=(40, 7))
  order = random.permutation(40)
  permutation = match(reference, reference[order] + 1e-3)
  np.testing.assert_array_equal(order[permutation], np.arange(40))


def test_two_parts_by_hand():
  reference = np.array([[0.0], [1.0], [10.0], [11.0]])
  rows = np.array([[0.0], [10.0], [1.0], [11.0]])
  np.testing.assert_array_equal(match(reference, rows), [0, 2, 1, 3])
  # Parts in order: 0 + 9 and 9 + 0. Swapped: 1 + 10 and 10 + 1.
  found = match(reference, rows, num_parts=2)
  np.testing.assert_array_equal(found, [0, 1, 2, 3])
  found = match(reference[[3, 2, 0, 1]], rows, num_parts=2)
  np.testing.assert_array_equal(found, [3, 2, 0, 1])


@pytest.mark.parametrize('seed', range(3))
def test_parts_against_all_orders_that_keep_them(seed):
  random = np.random.default_rng(seed)
  reference, rows = random.normal(size=(2, 6, 4))
  costs = spatial.distance.cdist(reference, rows)
  permutation = match(reference, rows, num_parts=3)
  least = min(
    (costs[np.arange(6), list(order)].sum(), order)
    for order in itertools.permutations(range(6))
    if all(order[2 * k] // 2 == order[2 * k + 1] // 2 for k in range(3))
  )
  np.testing.assert_array_equal(permutation, least[1])


def test_refused_rows():
  rows = np.zeros([4, 3])
  with pytest.raises(ValueError, match=r'`reference_rows`, \(4, 3\), found \('):
    match(rows, rows[:3])
  bad = rows.copy()
  bad[1, 2] = np.nan
  for vectors in ((rows, bad), (bad, rows)):
    with pytest.raises(ValueError, match='invalid numeric entries'):
      match(*vectors)
