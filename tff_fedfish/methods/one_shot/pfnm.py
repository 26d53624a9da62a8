"""PFNM: averages neurons that a Beta-Bernoulli process matches across clients.

Yurochkin et al. (2019), "Bayesian nonparametric federated learning of neural
networks"; layer by layer from the input, as in Wang et al. (2020), "Federated
learning with matched averaging". A neuron of a hidden layer is the vector of
its incoming weights and bias, for a convolution that of a channel. Its inputs
are the global neurons of the layer before, with weight 0 from those that its
client does not have. Hidden layers may become wider than the clients'.

  hidden layers  neuron i = (1 / m_i) sum of v over the m_i clients that have it
  last layer     column c = sum_j (n_jc / n_c) column c of client j

n_jc are the examples of class c at client j, n_c those of all clients; p_j
stands for n_jc / n_c where there are none.

Which neurons match: global neurons theta_i are drawn from N(0, sigma0^2 I). The
Indian buffet process chooses some of them for each client, which observes each
as v ~ N(theta_i, sigma^2 I), in an order of its own.

  letter  meaning
  v_l     neuron l of the client that is being matched, D entries
  J       clients, this one included
  gamma   expected number of neurons of a client
  m_i     other clients that have global neuron i, 1 to J - 1
  S_i     sum of their v
  k       number of a new global neuron, from 1

Given the matches of all others, the posterior of theta_i is N(t_i, I / tau_i)
with tau_i = 1 / sigma0^2 + m_i / sigma^2 and t_i = S_i / (sigma^2 tau_i). v_l
then has the density N(t_i, s_i I), s_i = sigma^2 + 1 / tau_i, if it is neuron
i, and N(0, s_0 I), s_0 = sigma^2 + sigma0^2, if it is a new one. The process
gives the client each neuron i with probability m_i / J, and n new ones with
probability Poisson(n; gamma / J). The logarithm of all this, less what all
matches share, is a sum of gains over the client's neurons:

  g(l, i) = -|v_l - t_i|^2 / (2 s_i) - D/2 log s_i + log(m_i / (J - m_i))
  g(l, new k) = -|v_l|^2 / (2 s_0) - D/2 log s_0 + log(gamma / J) - log k

where the log k sum to log n!. The best matches solve an assignment problem.
Clients are first added one by one, J the clients so far, as the process is
defined. Then each is matched again given all others, until nothing changes.

Two choices differ from the published code. It returns posterior means, which
shrink every layer; here weights are plain means as in the second paper. And its
cost maximizes over theta_i, which is integrated out here: that drops both terms
D/2 log s, without which a new neuron costs next to nothing if weights are small
beside sigma0. At the published sigma = 1 hardly any layer grows.
"""

import dataclasses

import numpy as np

from tff_fedfish.fields import number
from tff_fedfish.late import module
from tff_fedfish.methods.one_shot import OneShot
from tff_fedfish.methods.one_shot.permutations import (
  incoming_vectors,
  is_chain,
  permutation_groups,
  take_units,
)
from tff_fedfish.methods.one_shot.uploads import SolveResult
from tff_fedfish.methods.settings import image_problems

_optimize = module('scipy.optimize')

_MAX_SWEEPS = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pfnm(OneShot):
  """One-shot, images only: neurons that clients share are averaged.

  They are matched by a Beta-Bernoulli process, layer by layer; the others stand
  beside them.
  """

  title = 'PFNM'
  source = (
    'Yurochkin et al. (2019), "Bayesian nonparametric federated learning of '
    'neural networks"'
  )
  hue, hatch = '#661100', '++'
  summary = 'class_counts'

  sigma: float = number(1.0, above=0)
  """Standard deviation of a client's neuron around the global one, > 0. 1 as
  published is far above most weights; smaller values widen hidden layers. Unit:
  that of weights."""
  sigma0: float = number(1.0, above=0)
  """Standard deviation of global neurons around 0, > 0. 1 as published. Unit:
  that of weights."""
  gamma: float = number(7.0, above=0)
  """Expected number of neurons per client and layer in the prior, > 0."""
  max_growth: float = number(2.0, at_least=1)
  """Most neurons of a hidden layer as a multiple of the clients', >= 1."""

  def solve(self, uploads, start, context):
    """Returns the matched and averaged model.

    Of one layer the vectors of all clients are in memory; uploads are read once
    per hidden layer and twice more.
    """
    groups = permutation_groups(context.shape)
    # Per group and client: its neuron at each global one, -1 where it has none.
    # Per weight of a hidden layer: the clients that have each global neuron.
    sources, counts = [], {}
    for depth, group in enumerate(groups):
      vectors = []
      for client, upload in enumerate(uploads):
        weights = uploads.by_name(upload.weights)
        if depth:
          before = sources[depth - 1][client]
          weights = take_units(weights, groups[depth - 1], before)
        vectors.append(incoming_vectors(weights, group))
      limit = int(self.max_growth * group.num_units)
      places = _match_clients(vectors, self, limit)
      totals = np.bincount(np.concatenate(places))
      counts |= {axis.name: totals for axis in group.axes if axis.is_incoming}
      sources.append(np.full([len(places), len(totals)], -1))
      np.put_along_axis(
        sources[-1], np.stack(places), np.arange(group.num_units)[np.newaxis], 1
      )

    class_shares, sums = _class_shares(uploads), {}
    for client, upload in enumerate(uploads):
      weights = uploads.by_name(upload.weights)
      for group, found in zip(groups, sources, strict=True):
        weights = take_units(weights, group, found[client])
      for name, weight in weights.items():
        # Columns of the last layer are classes, those of others are neurons.
        factors = 1 / counts[name] if name in counts else class_shares[client]
        sums[name] = sums.get(name, 0) + weight * factors
    return SolveResult(
      tuple(np.ascontiguousarray(w, np.float32) for w in sums.values())
    )

  def solve_models(self, config, num_clients):
    """Returns models held: a layer's vectors, wider sums and an upload."""
    # Vectors are held in float32 and float64, whose inputs may have grown.
    return 3 * self.max_growth * num_clients + 8 * self.max_growth**2 + 1

  def problems(self, config):
    problems = super().problems(config) + image_problems(config)
    if config.data.holds_images and not is_chain(config.model_shape()):
      problems.append(
        '`config.model.preset` must be a model without residuals with '
        f"algorithm.name 'pfnm', found {config.model.preset!r}"
      )
    if config.training.num_rounds != 1:
      problems.append(
        "`config.training.num_rounds` must be 1 with algorithm.name 'pfnm', "
        'whose solution may be wider than the model that clients train, found '
        f'{config.training.num_rounds}'
      )
    return problems


def _class_shares(uploads):
  """Returns n_jc / n_c, float64 [num_clients, num_classes]."""
  counts = [upload.summary['class_counts'] for upload in uploads]
  totals = np.sum(counts, axis=0)
  shares = counts / np.maximum(totals, 1)
  return np.where(totals > 0, shares, uploads.shares[:, np.newaxis])


def _match_clients(vectors, settings, limit):
  """Matches all clients' neurons of a layer, float [neurons, D] per client.

  Returns per client int [neurons], the global neuron of each, at most `limit`:
  the best given all others', or those after 20 sweeps. Global neurons are in
  the order of the first client that has them, client 0's first.
  """
  vectors = [np.asarray(rows, np.float64) for rows in vectors]
  places = {}
  for client in range(len(vectors)):
    places[client] = _best_places(client, vectors, places, settings, limit)
  for _ in range(_MAX_SWEEPS):
    before = places = _in_order(places)
    for client in places:
      others = {j: found for j, found in places.items() if j != client}
      found = _best_places(client, vectors, others, settings, limit)
      places = places | {client: found}
    places = _in_order(places)
    if all(np.array_equal(places[j], before[j]) for j in places):
      break
  return list(places.values())


def _best_places(client, vectors, others, settings, limit):
  """Matches a client with others, a dict; new neurons get unused numbers."""
  rows = vectors[client]
  taken = np.concatenate([np.empty(0, int), *others.values()])
  numbers, counts = np.unique(taken, return_counts=True)
  sums = np.zeros([len(numbers), rows.shape[1]])
  for other, places in others.items():
    sums[np.searchsorted(numbers, places)] += vectors[other]
  num_new = min(len(rows), limit - len(numbers))
  gain = gains(rows, sums, counts, settings, len(others) + 1, num_new)
  _, found = _optimize.linear_sum_assignment(gain, maximize=True)
  unused = np.max(taken, initial=-1) + 1
  return np.append(numbers, unused + np.arange(num_new))[found]


def gains(rows, sums, counts, settings, num_clients, num_new):
  """Returns g [neurons, global neurons + num_new], new ones last, in nats."""
  sigma, sigma0 = settings.sigma, settings.sigma0
  # Nothing is known of a new neuron: it comes last, with m = 0 and S = 0.
  tau = 1 / sigma0**2 + np.append(counts, 0) / sigma**2
  sums = np.vstack([sums, np.zeros_like(rows[:1])])
  t = (sums / sigma**2) / tau[:, np.newaxis]
  s = sigma**2 + 1 / tau
  squares = np.sum(rows**2, 1)[:, np.newaxis] + np.sum(t**2, 1) - 2 * rows @ t.T
  fit = -squares / (2 * s) - rows.shape[1] / 2 * np.log(s)
  known = fit[:, :-1] + np.log(counts / (num_clients - counts))
  ranks = np.arange(1, num_new + 1)
  new = fit[:, -1:] + np.log(settings.gamma / num_clients) - np.log(ranks)
  return np.hstack([known, new])


def _in_order(places):
  """Numbers global neurons by the first client, then its order, from 0."""
  numbers, firsts = np.unique(
    np.concatenate(list(places.values())), return_index=True
  )
  ranks = np.argsort(np.argsort(firsts))
  return {j: ranks[np.searchsorted(numbers, p)] for j, p in places.items()}
