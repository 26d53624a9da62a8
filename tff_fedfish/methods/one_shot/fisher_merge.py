"""FisherMerge: the mean of the models, weighted by their Fisher diagonals.

Matena and Raffel (2022), "Merging models with Fisher-weighted averaging",
coordinate by coordinate:

  w = sum_i p_i F_i w_i / sum_i p_i F_i,   w_bar where sum_i p_i F_i is small

with w_i the weights of client i, F_i its Fisher diagonal, p_i its share in the
examples and w_bar = sum_i p_i w_i.
"""

import dataclasses

import numpy as np

from tff_fedfish.fields import number
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.uploads import SolveResult, fisher_sums


@dataclasses.dataclass(frozen=True, kw_only=True)
class FisherMerge(OneShot):
  """One-shot: the mean of the models, weighted by Fisher diagonals.

  Each coordinate has weights of its own, the clients' diagonals.
  """

  title = 'FisherMerge'
  source = (
    'Matena and Raffel (2022), "Merging models with Fisher-weighted averaging"'
  )
  hue, hatch = '#CC6677', 'xx'
  summary = 'diagonal'

  fisher_floor: float = number(1e-6, at_least=0)
  """Sum of the clients' weighted diagonals below which a coordinate takes the
  average of the models, >= 0. 0: only coordinates without any Fisher do."""

  def solve(self, uploads, start, context):
    """Returns the Fisher-weighted mean, in one pass over the uploads.

    As in the authors' code w_bar is that before compression, if it is known.
    """
    mass, weighted = fisher_sums(uploads, start)
    averages = context.uncompressed_mean or start
    for m, s, average in zip(mass, weighted, averages, strict=True):
      is_small = (m < self.fisher_floor) | (m == 0)
      np.divide(s, m, out=s, where=~is_small)
      np.copyto(s, average, where=is_small)
    return SolveResult(tuple(weighted))
