"""Distances of label frequencies: balanced classes and uneven clients."""

import numpy as np
import pytest

from tff_fedfish.data.label_skew import emd_fomo, emd_l1


def _with_classes(num_classes_each):
  """Returns clients with so many of ten classes each, balanced over all."""
  histograms = np.zeros((10, 10), int)
  for client in range(10):
    for step in range(num_classes_each):
      histograms[client, (client + step) % 10] = 60 // num_classes_each
  return histograms


@pytest.mark.parametrize(
  ('num_classes_each', 'l1', 'fomo'),
  [
    # One class: 0.9 + 9 * 0.1; the class that is present counts again.
    (1, 1.8, 2.7),
    # Two: 2 * 0.4 + 8 * 0.1, and 0.8 again.
    (2, 1.6, 2.4),
    # Five: 5 * 0.1 + 5 * 0.1, and 0.5 again.
    (5, 1.0, 1.5),
    (10, 0.0, 0.0),
  ],
)
def test_balanced_classes(num_classes_each, l1, fomo):
  histograms = _with_classes(num_classes_each)
  assert emd_l1(histograms) == pytest.approx(l1)
  assert emd_fomo(histograms) == pytest.approx(fomo)


def test_uneven_clients():
  # q = (4, 2, 0) / 6. p = (1, 0, 0): 1/3 + 1/3; (1/4, 2/4, ...) has no third
  # class: p_2 = (1/2, 1/2, 0): 1/6 + 1/6. Means: (2/3 + 1/3) / 2 = 1/2 and
  # (2/3 + 1/3 + 1/3 + 1/3) / 2 = 5/6; the empty client does not count.
  histograms = np.array([[2, 0, 0], [2, 2, 0], [0, 0, 0]])
  assert emd_l1(histograms) == pytest.approx(1 / 2)
  assert emd_fomo(histograms) == pytest.approx(5 / 6)
