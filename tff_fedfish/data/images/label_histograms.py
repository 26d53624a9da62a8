"""How the classes of a partition's clients differ."""

from collections.abc import Sequence

import numpy as np


def label_histograms(
  labels: np.ndarray, parts: Sequence[np.ndarray], num_classes: int
) -> np.ndarray:
  """Returns how many examples of each class each client has.

  Args:
    labels: Int [n], from 0 to num_classes - 1.
    parts: The rows of each client, as the partitions return them.
    num_classes: Classes that there are.

  Returns:
    Int64 [clients, num_classes].
  """
  return np.array(
    [np.bincount(labels[rows], minlength=num_classes) for rows in parts],
    np.int64,
  ).reshape(-1, num_classes)
