"""OTFusion: averages models after aligning their neurons with one of them.

Singh and Jaggi (2020), "Model fusion via optimal transport", with weights as
the cost, exact transport plans and uniform marginals:

  w = sum_i p_i (w_i, its neurons in the order of those of w_0)

From input to output, each group of neurons (`permutations.py`) is matched with
the reference's by the Euclidean distance of incoming weights, whose inputs are
already in the reference's order.

The paper's plans may be soft where widths differ. Here all widths are equal: by
Birkhoff's theorem an exact plan is a permutation, an assignment of least total
distance, and an aligned model computes the function that its client trained.
"""

import dataclasses

import numpy as np

from tff_fedfish.late import module
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.permutations import (
  incoming_vectors,
  permutation_groups,
  take_units,
)
from tff_fedfish.methods.one_shot.uploads import SolveResult

_optimize = module('scipy.optimize')


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtFusion(OneShot):
  """One-shot: models are averaged after their neurons are matched.

  Those of every model are matched with the first client's by optimal transport,
  layer by layer.
  """

  title = 'OTFusion'
  source = 'Singh and Jaggi (2020), "Model fusion via optimal transport"'
  hue, hatch = '#44AA99', 'oo'

  def solve(self, uploads, start, context):
    """Returns the average of the aligned models, in one pass over uploads."""
    groups = permutation_groups(context.shape)
    reference, sums = None, None
    for share, upload in zip(uploads.shares, uploads, strict=True):
      weights = uploads.by_name(upload.weights)
      if reference is None:
        reference = {g.name: incoming_vectors(weights, g) for g in groups}
        sums = {name: np.zeros(w.shape) for name, w in weights.items()}
      else:
        for group in groups:
          vectors = incoming_vectors(weights, group)
          order = _match(reference[group.name], vectors, group.num_parts)
          weights = take_units(weights, group, order)
      for name, weight in weights.items():
        sums[name] += share * weight
    return SolveResult(tuple(w.astype(np.float32) for w in sums.values()))


def _match(reference, rows, num_parts):
  """Returns the order in which neurons are closest to the reference's.

  A permutation that minimizes the sum over k of |reference[k] - rows[order[k]]|
  for [num_units, dimensions] each. `num_parts` equal runs of neurons stay
  together: each is matched with one of the reference, neuron by neuron.
  """
  costs = _distances(reference, rows)
  # [part of the reference, part, neuron of the reference, neuron]
  size = len(rows) // num_parts
  blocks = costs.reshape(num_parts, size, num_parts, size).swapaxes(1, 2)
  part_costs = np.empty([num_parts, num_parts])
  inner = np.empty([num_parts, num_parts, size], int)
  for pair in np.ndindex(num_parts, num_parts):
    assigned = _optimize.linear_sum_assignment(blocks[pair])
    part_costs[pair] = blocks[pair][assigned].sum()
    inner[pair] = assigned[1]
  parts = _optimize.linear_sum_assignment(part_costs)[1]
  inner = inner[np.arange(num_parts), parts]
  return (parts[:, np.newaxis] * size + inner).ravel()


def _distances(first, second):
  """Returns the Euclidean distance of every pair of rows."""
  first, second = (np.asarray(rows, np.float64) for rows in (first, second))
  # One product of matrices, several times as fast as pair by pair.
  squares = first @ (-2 * second.T)
  squares += np.sum(first**2, 1)[:, np.newaxis]
  squares += np.sum(second**2, 1)
  return np.sqrt(np.maximum(squares, 0, out=squares), out=squares)
