"""Sums of the clients' Fisher diagonals over uploads, read one at a time."""

from collections.abc import Sequence

import numpy as np

from tff_fedfish.evaluation import directions
from tff_fedfish.methods.one_shot.solving import Uploads


def fisher_sums(
  uploads: Uploads,
  start: Sequence[np.ndarray],
  *,
  divides_by_norm: bool = False,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
  """Returns (sum_i p_i F_i, sum_i p_i F_i w_i), in one pass.

  Args:
    uploads: Of the clients. Their summaries hold F_i as 'diagonal/0',
      'diagonal/1' and so on, in the order of the weights.
    start: Arrays of the weights' shapes.
    divides_by_norm: Whether F_i is divided by its norm over all coordinates
      first.

  Returns:
    Float32 arrays in the order of the weights.
  """
  mass, weighted = ([np.zeros_like(w) for w in start] for _ in range(2))
  for share, upload in zip(uploads.shares, uploads, strict=True):
    fishers = [upload.summary[f'diagonal/{i}'] for i in range(len(start))]
    factor = float(share)
    if divides_by_norm:
      # Without any Fisher there is nothing to divide.
      factor /= directions.norm(fishers) or 1.0
    for m, s, fisher, w in zip(
      mass, weighted, fishers, upload.weights, strict=True
    ):
      fisher = factor * fisher
      m += fisher
      s += fisher * w
  return mass, weighted
