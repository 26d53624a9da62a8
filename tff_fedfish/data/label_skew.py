"""Mean distance of the clients' label frequencies from those of all clients.

Zhang et al. (2021), FedFomo, state it as the "EMD" of a division. NumPy.

  letter  name                 shape
  p_i     frequencies          [classes], of client i
  q       overall frequencies  [classes], of all clients' examples
"""

import numpy as np

from tff_fedfish.errors import require


def emd_l1(histograms: np.ndarray) -> float:
  """Returns the mean over clients of sum_c |p_ic - q_c|, from 0 to 2.

  Args:
    histograms: Int [clients, classes], examples of each class. Clients without
      examples do not count.

  Raises:
    ValueError: If no client has examples.
  """
  own, overall = _frequencies(histograms)
  return float(np.abs(own - overall).sum(axis=1).mean())


def emd_fomo(histograms: np.ndarray) -> float:
  """Returns the distance as FedFomo's code computes it, from 0 to 4.

  |p_ic - q_c| is summed over the classes in q and again over those in p_i: the
  published values, up to 2.8, are beyond the L1 distance. See `emd_l1`.
  """
  own, overall = _frequencies(histograms)
  distances = np.abs(own - overall)
  times = (own > 0).astype(np.int64) + (overall > 0)
  return float((times * distances).sum(axis=1).mean())


def _frequencies(histograms):
  histograms = np.asarray(histograms)
  histograms = histograms[histograms.sum(axis=1) > 0]
  require(len(histograms) > 0, 'histograms', 'of clients with examples', [])
  overall = histograms.sum(axis=0) / histograms.sum()
  return histograms / histograms.sum(axis=1, keepdims=True), overall
