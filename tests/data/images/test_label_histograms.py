"""Histograms and FedFomo's distances, by hand."""

import numpy as np
import pytest

from tff_fedfish.data.images import label_histograms


def test_histograms_and_empty_clients():
  labels = np.array([2, 0, 2, 1])
  parts = [np.array([0, 2, 1]), np.array([], int), np.array([3])]
  found = label_histograms.label_histograms(labels, parts, 4)
  assert found.tolist() == [[1, 0, 2, 0], [0] * 4, [0, 1, 0, 0]]
  assert label_histograms.empty_clients(parts) == [1]


def _banded(num_held):
  """Ten equal classes; client i has `num_held` of them, equally often."""
  return np.array(
    [[5 * ((c - i) % 10 < num_held) for c in range(10)] for i in range(10)]
  )


@pytest.mark.parametrize(
  ('num_held', 'l1', 'fomo'),
  [
    # |1/k - 1/10| k times, 1/10 for the 10 - k others; k times once more.
    (1, 1.8, 2.7),
    (2, 1.6, 2.4),
    (5, 1.0, 1.5),
    (10, 0.0, 0.0),
  ],
)
def test_distances_of_ten_equal_classes(num_held, l1, fomo):
  histograms = _banded(num_held)
  assert label_histograms.emd_l1(histograms) == pytest.approx(l1)
  assert label_histograms.emd_fomo(histograms) == pytest.approx(fomo)


def test_distances_of_unequal_clients_by_hand():
  # p = (1, 0) and (1/4, 3/4), q = (3/6, 3/6).
  # l1: 1/2 + 1/2 = 1 and 1/4 + 1/4 = 1/2, mean 3/4.
  # fomo: 1/2 + 1 = 3/2 and 1/2 + 1/2 = 1, mean 5/4.
  # A client without examples is left out.
  histograms = np.array([[2, 0], [0, 0], [1, 3]])
  assert label_histograms.emd_l1(histograms) == pytest.approx(0.75)
  assert label_histograms.emd_fomo(histograms) == pytest.approx(1.25)


@pytest.mark.parametrize('name', ['emd_l1', 'emd_fomo'])
def test_distance_of_nobody(name):
  with pytest.raises(ValueError, match='must have a client with examples'):
    getattr(label_histograms, name)(np.zeros((2, 3), int))
