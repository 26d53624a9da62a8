"""Dirichlet draws and cuts, by hand and by their moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_fedfish.data.images import label_draws


def _shares(concentrations, num_draws=4_000):
  # All draws at once.
  logs = label_draws.log_dirichlet(
    np.random.RandomState(0), np.tile(concentrations, (num_draws, 1))
  )
  return np.array([label_draws.to_shares(row) for row in logs])


class TestDirichlet:
  def test_mean(self):
    # Dir(1, 3): mean 1/4, variance 1/4 * 3/4 / (1 + 4) = 0.0375. The mean of
    # 4,000 has deviation sqrt(0.0375 / 4000) = 0.0031.
    shares = _shares([1.0, 3.0])
    assert abs(shares[:, 0].mean() - 0.25) < 5 * 0.0031
    np.testing.assert_allclose(shares.sum(axis=1), 1)

  @pytest.mark.parametrize('alpha', [0.01, 0.1, 1.0, 10.0])
  def test_spread_is_what_alpha_says(self, alpha):
    # E[p^2] = a (a + 1) / (A (A + 1)) with A = 3 a. p^2 lies in [0, 1], so its
    # deviation is at most 1/2, and that of the mean at most 0.5 / sqrt(4000).
    expected = alpha * (alpha + 1) / (3 * alpha * (3 * alpha + 1))
    found = (_shares([alpha] * 3)[:, 1] ** 2).mean()
    assert abs(found - expected) < 5 * 0.0079

  def test_tiny_concentrations_leave_one_share(self):
    # NumPy's own draw is 0 / 0 here.
    shares = _shares([1e-9] * 5, num_draws=200)
    assert np.all(shares.max(axis=1) == 1)
    # Each of the five is that one at times: 40 of 200, deviation 5.7.
    assert np.all(abs(shares.sum(axis=0) - 40) < 29)

  def test_a_concentration_of_zero_has_no_share(self):
    assert np.all(_shares([2.0, 0.0, 1.0], num_draws=50)[:, 1] == 0)


class TestShares:
  def test_by_hand(self):
    logs = np.log([1.0, 3.0, 4.0]) - 900  # All below the smallest double.
    np.testing.assert_allclose(label_draws.to_shares(logs), [0.125, 0.375, 0.5])
    allowed = np.array([True, True, False])
    np.testing.assert_allclose(
      label_draws.to_shares(logs, allowed), [0.25, 0.75, 0]
    )

  def test_draw_by_hand(self):
    # Shares 0, 1/4, 3/4, 0 end at 0, 0.25, 1, 1.
    logs = np.array([-np.inf, 0, np.log(3), -np.inf])
    thresholds = label_draws.to_thresholds(logs)
    np.testing.assert_allclose(thresholds, [0, 0.25, 1, 1])
    drawn = [label_draws.draw(thresholds, u) for u in (0.0, 0.24, 0.26, 0.999)]
    assert drawn == [1, 1, 2, 2]
    # The largest number below 1 that a generator returns.
    assert label_draws.draw(thresholds, 1 - 2**-53) == 2


class TestCut:
  def test_by_hand(self):
    # 10 rows: the parts end at floor(2.5) = 2, floor(7.5) = 7 and 10.
    parts = label_draws.cut(np.arange(10), np.array([0.25, 0.5, 0.25]))
    assert [part.tolist() for part in parts] == [
      [0, 1],
      [2, 3, 4, 5, 6],
      [7, 8, 9],
    ]

  def test_ints_by_hand(self):
    # 5 rows by 1 : 0 : 2 end at 5 // 3 = 1, 1 and 5.
    parts = label_draws.cut(np.arange(5), np.array([1, 0, 2]))
    assert [part.tolist() for part in parts] == [[0], [], [1, 2, 3, 4]]

  @given(
    st.integers(0, 50),
    st.lists(st.floats(0, 1), min_size=1).filter(any)
    | st.lists(st.integers(0, 9), min_size=1).filter(any),
  )
  def test_all_rows_once_and_none_for_a_share_of_zero(self, num_rows, shares):
    parts = label_draws.cut(np.arange(num_rows), np.array(shares))
    assert np.concatenate(parts).tolist() == list(range(num_rows))
    for part, share in zip(parts, shares, strict=True):
      assert share > 0 or len(part) == 0


def test_classes_are_shuffled_apart():
  labels = np.repeat([2, 0], 50)
  classes = label_draws.shuffled_classes(np.random.RandomState(0), labels, 4)
  assert [len(rows) for rows in classes] == [50, 0, 50, 0]
  assert sorted(classes[0]) == list(range(50, 100))
  assert classes[0].tolist() != sorted(classes[0])


def test_a_label_that_is_no_class():
  with pytest.raises(ValueError, match='between 0 and 2, found 1 to 3'):
    label_draws.shuffled_classes(np.random.RandomState(0), np.array([1, 3]), 3)


def test_histograms():
  labels = np.array([2, 0, 2, 1])
  parts = [np.array([0, 2, 1]), np.array([], int), np.array([3])]
  found = label_draws.label_histograms(labels, parts, 4)
  assert found.tolist() == [[1, 0, 2, 0], [0] * 4, [0, 1, 0, 0]]
  assert label_draws.label_histograms(labels, [], 4).shape == (0, 4)
