"""Matching of two equally large sets of neurons by optimal transport.

Singh and Jaggi (2020), "Model fusion via optimal transport". With uniform
marginals over n neurons each, the plans are the doubly stochastic matrices
divided by n. The cost is linear in the plan, so a corner of their polytope is
optimal, and by Birkhoff's theorem the corners are the permutations. An exact
plan is therefore an assignment, here of least total Euclidean distance.

Of 4,096 neurons of 1,025 entries an idle CPU core computes the distances in
about a second. The assignment takes it a tenth of a second if the models are
near each other, and three if they are unrelated: it grows with the cube of the
neurons.
"""

import numpy as np
from scipy import optimize

from tff_fedfish.errors import require


def match(
  reference_rows: np.ndarray, rows: np.ndarray, *, num_parts: int = 1
) -> np.ndarray:
  """Returns the order in which rows are closest to reference rows.

  Args:
    reference_rows: Float [num_units, dimensions], a vector per neuron.
    rows: Float of the same shape, vectors of another model.
    num_parts: Equal runs of neurons that stay together, a divisor of num_units:
      each run is matched with one of the reference, neuron by neuron.

  Returns:
    Int [num_units], a permutation that minimizes
    sum_k ||reference_rows[k] - rows[permutation[k]]||.

  Raises:
    ValueError: If the shapes differ, or a value is NaN.
  """
  require(
    rows.shape == reference_rows.shape,
    'rows',
    f'of the shape of `reference_rows`, {reference_rows.shape}',
    rows.shape,
  )
  costs = _distances(reference_rows, rows)
  if num_parts == 1:
    return optimize.linear_sum_assignment(costs)[1]
  # [part of the reference, part, neuron of the reference, neuron]
  size = len(rows) // num_parts
  blocks = costs.reshape(num_parts, size, num_parts, size).swapaxes(1, 2)
  part_costs = np.empty([num_parts, num_parts])
  inner = np.empty([num_parts, num_parts, size], int)
  for pair in np.ndindex(num_parts, num_parts):
    assigned = optimize.linear_sum_assignment(blocks[pair])
    part_costs[pair] = blocks[pair][assigned].sum()
    inner[pair] = assigned[1]
  parts = optimize.linear_sum_assignment(part_costs)[1]
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
