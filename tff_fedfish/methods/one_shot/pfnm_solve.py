"""PFNM: averages neurons that a Beta-Bernoulli process matches across clients.

Yurochkin et al. (2019), "Bayesian nonparametric federated learning of neural
networks"; layer by layer from the input, as in Wang et al. (2020), "Federated
learning with matched averaging". A neuron of a hidden layer is the vector of
its incoming weights and bias, for a convolution that of a channel. Its inputs
are the global neurons of the layer before, with weight 0 from those that its
client does not have.

  hidden layers  neuron i = (1 / m_i) sum of v over the m_i clients that have it
  last layer     column c = sum_j (n_jc / n_c) column c of client j

with n_jc the examples of class c at client j, n_c of all clients. For a class
without examples p_j stands for n_jc / n_c. Hidden layers may become wider than
the clients'; the shapes of the weights tell.

Two choices differ from the published code. It returns posterior means: with
sigma = sigma0 and mu0 = 0 each is m / (m + 1) of the mean of the v, so that
every layer shrinks. Here the posterior only decides on matches, and weights are
plain means as in the second paper. Clients with the same neurons, in any order,
thus give the function of one of them at any width. And matches integrate out
the global neurons, over which the published cost maximizes, so that such
clients also keep their width; `mathematics.beta_process` says when. sigma is in
units of weights: at the published 1, far above most, hardly any layer grows.
"""

from collections.abc import Sequence

import numpy as np

from models.permutations import (
  incoming_vectors,
  is_chain,
  permutation_groups,
  take_units,
)
from tff_fedfish.errors import require
from tff_fedfish.methods.one_shot.beta_process import BetaProcess, match_clients
from tff_fedfish.methods.one_shot.solving import (
  SolveContext,
  SolveResult,
  Uploads,
)
from tff_fedfish.methods.one_shot.uploaded_weights import checked_uploads


def solve(
  uploads: Uploads, start: Sequence[np.ndarray], context: SolveContext
) -> SolveResult:
  """Returns the matched and averaged model.

  Args:
    uploads: At least one, with `summary['class_counts']`: int [num_classes].
      They are read once per hidden layer and twice more, one at a time; of one
      layer the vectors of all clients are in memory.
    start: Not used.
    context: `shape` is an image model whose layers form a chain; `settings` is
      a `PfnmConfig`.

  Raises:
    ValueError: If the model, a client's weights or its counts are not of that
      kind.
  """
  del start
  settings, shape = context.settings, context.shape
  name = getattr(shape, 'name', 'a transformer')
  require(is_chain(shape), 'shape', 'an image model without residuals', name)
  process = BetaProcess(
    sigma=settings.sigma, sigma0=settings.sigma0, gamma=settings.gamma
  )
  class_shares = _class_shares(uploads, shape)
  groups = permutation_groups(shape)
  # Per group and client: its neuron at each global one, -1 where it has none.
  sources = []
  # Weights of hidden layers by name: the clients that have each global neuron.
  counts = {}
  for depth, group in enumerate(groups):
    vectors = []
    for client, (_, weights) in enumerate(checked_uploads(uploads, shape)):
      if depth:
        before = sources[depth - 1][client]
        weights = take_units(weights, groups[depth - 1], before)
      vectors.append(incoming_vectors(weights, group))
    limit = int(settings.max_growth * group.num_units)
    places = match_clients(vectors, process, max_neurons=limit)
    totals = np.bincount(np.concatenate(places))
    counts |= {axis.name: totals for axis in group.axes if axis.is_incoming}
    sources.append(np.full([len(places), len(totals)], -1))
    np.put_along_axis(
      sources[-1], np.stack(places), np.arange(group.num_units)[np.newaxis], 1
    )

  sums = {}
  for client, (_, weights) in enumerate(checked_uploads(uploads, shape)):
    for group, found in zip(groups, sources, strict=True):
      weights = take_units(weights, group, found[client])
    for name, weight in weights.items():
      # Columns of the last layer are classes, those of others are neurons.
      factors = 1 / counts[name] if name in counts else class_shares[client]
      sums[name] = sums.get(name, 0) + weight * factors
  return SolveResult(
    tuple(np.ascontiguousarray(w, np.float32) for w in sums.values())
  )


def _class_shares(uploads, shape):
  """Returns n_jc / n_c, float64 [num_clients, num_classes]."""
  counts = []
  for client, (upload, _) in enumerate(checked_uploads(uploads, shape)):
    found = np.asarray(upload.summary.get('class_counts', ()))
    require(
      found.shape == (shape.num_classes,) and bool(np.all(found >= 0)),
      f'class_counts of client {client}',
      f'counts of {shape.num_classes} classes',
      found.tolist(),
    )
    counts.append(found)
  totals = np.sum(counts, axis=0)
  shares = counts / np.maximum(totals, 1)
  return np.where(totals > 0, shares, uploads.shares[:, np.newaxis])
