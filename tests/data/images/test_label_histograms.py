"""Histograms of clients' classes, by hand."""

import numpy as np

from tff_fedfish.data.images import label_histograms


def test_by_hand():
  labels = np.array([2, 0, 2, 1])
  parts = [np.array([0, 2, 1]), np.array([], int), np.array([3])]
  found = label_histograms.label_histograms(labels, parts, 4)
  assert found.tolist() == [[1, 0, 2, 0], [0] * 4, [0, 1, 0, 0]]
