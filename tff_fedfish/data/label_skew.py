"""Mean distance of the clients' label frequencies from those of all clients.

Zhang et al. (2021), FedFomo, state it as the "EMD" of a division.

  letter  name                 shape
  p_i     frequencies          [classes], of client i
  q       overall frequencies  [classes], of all clients' examples
"""

import numpy as np


def emd_l1(histograms: np.ndarray) -> float:
  """Returns the mean over clients of sum_c |p_ic - q_c|, from 0 to 2.

  Args:
    histograms: Int [clients, classes], examples of each class. Clients without
      examples do not count.
  """
  own, overall = _frequencies(histograms)
  return float(np.abs(own - overall).sum(axis=1).mean())


def emd_fomo(histograms: np.ndarray) -> float:
  """Returns the distance as FedFomo's code computes it, from 0 to 4.

  |p_ic - q_c| is summed over the classes in q and again over those in p_i: the
  published values, up to 2.8, are beyond the L1 distance. See `emd_l1`.
  """
  own, overall = _frequencies(histograms)
  times = (own > 0).astype(np.int64) + (overall > 0)
  return float((times * np.abs(own - overall)).sum(axis=1).mean())


def _frequencies(histograms):
  histograms = histograms[histograms.sum(axis=1) > 0]
  overall = histograms.sum(axis=0) / histograms.sum()
  return histograms / histograms.sum(axis=1, keepdims=True), overall
