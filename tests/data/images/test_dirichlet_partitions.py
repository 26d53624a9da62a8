"""The three Dirichlet conventions: draws, then sizes that follow from them."""

import itertools

import numpy as np
import pytest

from tff_fedfish.data.images import dirichlet_partitions, label_draws
from tff_fedfish.data.images.label_draws import label_histograms, rows_by_class


def _shares(concentrations, num_draws=4_000):
  # All draws at once.
  logs = label_draws.log_dirichlet(
    np.random.RandomState(0), np.tile(concentrations, (num_draws, 1))
  )
  return np.array([label_draws.to_shares(row) for row in logs])


class TestDraws:
  @pytest.mark.parametrize('alpha', [0.01, 0.1, 1.0, 10.0])
  def test_spread_follows_alpha(self, alpha):
    # E[p^2] = a (a + 1) / (A (A + 1)) with A = 3 a. p^2 lies in [0, 1], so its
    # deviation is at most 1/2, and that of the mean at most 0.5 / sqrt(4000).
    expected = alpha * (alpha + 1) / (3 * alpha * (3 * alpha + 1))
    shares = _shares([alpha, 0.0, alpha, alpha])
    assert abs((shares[:, 2] ** 2).mean() - expected) < 5 * 0.0079
    assert np.all(shares[:, 1] == 0)
    np.testing.assert_allclose(shares.sum(axis=1), 1)

  def test_tiny_concentrations_leave_one_share(self):
    # NumPy's own draw is 0 / 0 here.
    shares = _shares([1e-9] * 5, num_draws=200)
    assert np.all(shares.max(axis=1) == 1)
    # Each of the five is that one at times: 40 of 200, deviation 5.7.
    assert np.all(abs(shares.sum(axis=0) - 40) < 29)

  def test_shares_by_hand(self):
    logs = np.log([1.0, 3.0, 4.0]) - 900  # All below the smallest double.
    np.testing.assert_allclose(label_draws.to_shares(logs), [0.125, 0.375, 0.5])
    allowed = np.array([True, True, False])
    np.testing.assert_allclose(
      label_draws.to_shares(logs, allowed), [0.25, 0.75, 0]
    )


@pytest.fixture
def draws(monkeypatch):
  """Makes the draws what a test says; returns the concentrations asked for."""
  asked = []

  def fix(*shares):
    rest = itertools.cycle(shares)

    def log_dirichlet(generator, concentrations):
      asked.append(np.asarray(concentrations).tolist())
      return np.log(next(rest))

    monkeypatch.setattr(dirichlet_partitions, 'log_dirichlet', log_dirichlet)
    return asked

  return fix


def _histograms(labels, parts):
  return label_histograms(labels, parts, 2).tolist()


class TestPerClassOverClients:
  def _split(self, labels, num_classes=2, **changes):
    return dirichlet_partitions.per_class_over_clients(
      rows_by_class(labels, num_classes),
      **(dict(num_clients=2, seed=1, alpha=0.5, min_examples=1) | changes),
    )

  def test_a_full_client_gets_no_more(self, draws):
    # 12 examples, 8 of class 0: with shares 0.8 and 0.2 the first client gets
    # floor(6.4) = 6 of it, 12 / 2, and is full: class 1 is the other's alone.
    asked = draws([0.8, 0.2])
    labels = np.array([0] * 8 + [1] * 4)
    assert _histograms(labels, self._split(labels)) == [[6, 0], [2, 4]]
    # A draw over the clients for each class.
    assert asked == [[0.5, 0.5], [0.5, 0.5]]

  def test_draws_again_until_the_smallest_is_large_enough(self, draws):
    # 20 of one class: 18 and 2, then 14 and 6, then floor(11.2) = 11 and 9.
    asked = draws([0.94, 0.06], [0.72, 0.28], [0.56, 0.44])
    labels = np.zeros(20, int)
    parts = self._split(labels, num_classes=1, min_examples=8)
    assert [len(part) for part in parts] == [11, 9]
    assert len(asked) == 3


class TestPerClientOverClassesNormalised:
  def _split(self, labels, num_classes=2, **changes):
    return dirichlet_partitions.per_client_over_classes_normalised(
      rows_by_class(labels, num_classes),
      **(dict(num_clients=2, seed=1, alpha=0.5) | changes),
    )

  def test_by_hand(self, draws):
    # Class 0: 0.8 against 0.4, so the first has 2/3 of 10: floor(6.67) = 6.
    # Class 1: 0.2 against 0.6, 1/4 of 9: floor(2.25) = 2.
    # Shares over clients instead would give 8 and 2, then 3 and 6.
    asked = draws([0.8, 0.2], [0.4, 0.6])
    labels = np.array([0] * 10 + [1] * 9)
    assert _histograms(labels, self._split(labels)) == [[6, 2], [4, 7]]
    assert asked == [[0.5, 0.5], [0.5, 0.5]]


class TestPerClientSampling:
  def _split(self, labels, num_classes=2, **changes):
    return dirichlet_partitions.per_client_sampling(
      rows_by_class(labels, num_classes),
      **(dict(num_clients=2, seed=1, alpha=6.0) | changes),
    )

  def test_a_class_that_is_used_up_is_left_out(self, draws):
    # Both want class 0 alone, of which there are two: the first client gets
    # both and one of class 1; the second finds class 1 only.
    asked = draws([1.0, 1e-300])
    labels = np.array([1, 0, 1, 1, 0, 1])
    assert _histograms(labels, self._split(labels)) == [[2, 1], [0, 3]]
    # alpha times the prior, 2/6 and 4/6, for each client.
    np.testing.assert_allclose(asked, [[2, 4], [2, 4]])
