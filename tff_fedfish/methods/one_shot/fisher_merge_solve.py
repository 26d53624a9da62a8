"""FisherMerge: the clients' mean, weighted by their Fisher diagonals.

Matena and Raffel (2022), "Merging models with Fisher-weighted averaging",
coordinate by coordinate:

  w = sum_i p_i F_i w_i / sum_i p_i F_i,   w_bar where sum_i p_i F_i is small

with w_i the weights of client i, F_i its Fisher diagonal, p_i its share in the
examples and w_bar = sum_i p_i w_i.
"""

import numpy as np

from tff_fedfish.methods.one_shot.fisher_sums import fisher_sums
from tff_fedfish.methods.one_shot.solving import (
  SolveContext,
  SolveResult,
  Uploads,
)


def solve(
  uploads: Uploads, start: tuple[np.ndarray, ...], context: SolveContext
) -> SolveResult:
  """Returns the Fisher-weighted mean, in one pass over the uploads.

  Besides an upload and w_bar two models are held.

  Args:
    uploads: Of the clients. Their summaries hold F_i as 'diagonal/0',
      'diagonal/1' and so on, in the order of the weights.
    start: w_bar.
    context: Of the settings, `fisher_floor` is the sum_i p_i F_i below which a
      coordinate keeps w_bar; with 0 only those without any do. With
      `divides_by_norm` F_i is divided by its norm over all coordinates first.
  """
  mass, weighted = fisher_sums(
    uploads, start, divides_by_norm=context.settings.divides_by_norm
  )
  for m, s, average in zip(mass, weighted, start, strict=True):
    is_small = (m < context.settings.fisher_floor) | (m == 0)
    np.divide(s, m, out=s, where=~is_small)
    np.copyto(s, average, where=is_small)
  return SolveResult(tuple(weighted))
