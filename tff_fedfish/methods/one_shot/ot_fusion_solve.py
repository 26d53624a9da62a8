"""OTFusion: averages models after aligning their neurons with one of them.

Singh and Jaggi (2020), "Model fusion via optimal transport", with weights as
the cost, exact transport plans and uniform marginals. Client 0 is the
reference. From input to output, each group of neurons is matched with the
reference's by the Euclidean distance of incoming weights, whose inputs are
already in the reference's order. Outputs keep their order.

The paper's plans may be soft where widths differ. Here all widths are equal, so
each plan is a permutation (see `mathematics.transport`), and an aligned model
computes the function that its client trained. `models.permutations` lists the
groups; the residual stream of transformers and ResNets is not permuted.
"""

from collections.abc import Sequence

import numpy as np

from models.permutations import incoming_vectors, permutation_groups, permute
from tff_fedfish.methods.one_shot.solving import (
  SolveContext,
  SolveResult,
  Uploads,
)
from tff_fedfish.methods.one_shot.transport import match
from tff_fedfish.methods.one_shot.uploaded_weights import checked_uploads


def solve(
  uploads: Uploads, start: Sequence[np.ndarray], context: SolveContext
) -> SolveResult:
  """Returns sum_i p_i (w_i aligned with w_0).

  Args:
    uploads: At least one client's weights; read once, one at a time.
    start: Not used.
    context: Its shape.

  Raises:
    ValueError: If the uploads' shapes are not the model's, or a weight is not
      finite.
  """
  del start
  groups = permutation_groups(context.shape)
  reference, sums = None, None
  clients = checked_uploads(uploads, context.shape)
  for share, (_, weights) in zip(uploads.shares, clients, strict=True):
    if reference is None:
      reference = {g.name: incoming_vectors(weights, g) for g in groups}
      sums = {name: np.zeros(w.shape) for name, w in weights.items()}
    else:
      for group in groups:
        vectors = incoming_vectors(weights, group)
        permutation = match(
          reference[group.name], vectors, num_parts=group.num_parts
        )
        weights = permute(weights, group, permutation)
    for name, weight in weights.items():
      sums[name] += share * weight
  return SolveResult(tuple(w.astype(np.float32) for w in sums.values()))
