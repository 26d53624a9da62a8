"""Matching of several clients' neurons by a Beta-Bernoulli process (PFNM).

Yurochkin et al. (2019), "Bayesian nonparametric federated learning of neural
networks". Global neurons theta_i are drawn from N(mu0, sigma0^2 I). The Indian
buffet process chooses some of them for each client, which observes each as
v ~ N(theta_i, sigma^2 I), in an order of its own.

  letter  name           meaning
  v_l     rows[l]        neuron l of the client that is being matched, D entries
  J       num_clients    clients, this one included
  gamma   gamma          expected number of neurons of a client
  m_i     counts[i]      other clients that have global neuron i, 1 to J - 1
  S_i     sums[i]        sum of their v
  k       ranks          number of a new global neuron, from 1

Given the matches of all others, the posterior of theta_i is N(t_i, I / tau_i):

  tau_i = 1 / sigma0^2 + m_i / sigma^2
  t_i = (mu0 / sigma0^2 + S_i / sigma^2) / tau_i

v_l then has the density N(t_i, s_i I), s_i = sigma^2 + 1 / tau_i, if it is
neuron i, and N(mu0, s_0 I), s_0 = sigma^2 + sigma0^2, if it is a new one. The
process gives the client each neuron i with probability m_i / J, and n new ones
with probability Poisson(n; gamma / J). The logarithm of all this, less what all
matches share, is a sum of gains over the client's neurons:

  g(l, i) = -|v_l - t_i|^2 / (2 s_i) - D/2 log s_i + log(m_i / (J - m_i))
  g(l, new k) = -|v_l - mu0|^2 / (2 s_0) - D/2 log s_0 + log(gamma / J) - log k

where the log k sum to log n!. The best matches solve an assignment problem.
Clients are first added one by one, J the clients so far, as the process is
defined. Then each is matched again given all others, until nothing changes.

The published cost maximizes over theta_i, which is integrated out here. That
drops both terms D/2 log s. Without them a new neuron costs only its distance
from mu0: next to nothing if weights are small beside sigma0. Let all clients
have the same neurons, with sigma = sigma0 = 1 and mu0 = 0. Client J has no new
neuron if all v meet

  |v|^2 (1/4 - 1 / (2 J (J + 1))) + D/2 log(2 J / (J + 1))
    > log(gamma / (J (J - 1)))

and J = 2 asks for most. With gamma = 7 all v do where D >= 9.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from tff_fedfish.errors import require

_MAX_SWEEPS = 20


class BetaProcess(NamedTuple):
  """The prior of all neurons."""

  sigma: float = 1.0
  sigma0: float = 1.0
  gamma: float = 7.0
  mu0: float = 0.0


def match_clients(
  vectors: Sequence[np.ndarray],
  process: BetaProcess,
  *,
  max_neurons: int | None = None,
) -> list[np.ndarray]:
  """Matches all clients' neurons of a layer.

  Args:
    vectors: Per client: float [neurons, D], finite.
    process: The prior.
    max_neurons: Most global neurons, at least those of each client. None: no
      limit.

  Returns:
    Per client: int [neurons], the global neuron of each, all different; the
    best given all others', or those after 20 sweeps. Global neurons are in the
    order of the first client that has them, client 0's first.

  Raises:
    ValueError: If an argument is out of its range.
  """
  for name in ('sigma', 'sigma0', 'gamma'):
    value = getattr(process, name)
    require(value > 0, name, 'positive', value)
  most = max(map(len, vectors))
  limit = sum(map(len, vectors)) if max_neurons is None else max_neurons
  require(limit >= most, 'max_neurons', f'at least {most}', limit)
  vectors = [np.asarray(rows, np.float64) for rows in vectors]
  places = {}
  for client in range(len(vectors)):
    places[client] = _best_places(client, vectors, places, process, limit)
  for _ in range(_MAX_SWEEPS):
    before = places = _in_order(places)
    for client in places:
      others = {j: found for j, found in places.items() if j != client}
      found = _best_places(client, vectors, others, process, limit)
      places = places | {client: found}
    places = _in_order(places)
    if all(np.array_equal(places[j], before[j]) for j in places):
      break
  return list(places.values())


def gains(
  rows: np.ndarray,
  sums: np.ndarray,
  counts: np.ndarray,
  process: BetaProcess,
  *,
  num_clients: int,
  num_new: int,
) -> np.ndarray:
  """Returns g of all neurons of a client and global neurons, in nats.

  Args:
    rows: v, float [neurons, D].
    sums: S, float [global neurons, D].
    counts: m, int [global neurons], from 1 to num_clients - 1.
    process: The prior.
    num_clients: J.
    num_new: Number of columns of new global neurons.

  Returns:
    Float [neurons, global neurons + num_new].
  """
  sigma, sigma0, gamma, mu0 = process
  # Nothing is known of a new neuron: it comes last, with m = 0 and S = 0.
  tau = 1 / sigma0**2 + np.append(counts, 0) / sigma**2
  sums = np.vstack([sums, np.zeros_like(rows[:1])])
  t = (mu0 / sigma0**2 + sums / sigma**2) / tau[:, np.newaxis]
  s = sigma**2 + 1 / tau
  squares = np.sum(rows**2, 1)[:, np.newaxis] + np.sum(t**2, 1) - 2 * rows @ t.T
  fit = -squares / (2 * s) - rows.shape[1] / 2 * np.log(s)
  known = fit[:, :-1] + np.log(counts / (num_clients - counts))
  ranks = np.arange(1, num_new + 1)
  new = fit[:, -1:] + np.log(gamma / num_clients) - np.log(ranks)
  return np.hstack([known, new])


def _best_places(client, vectors, others, process, limit):
  """Matches a client with others, a dict; new neurons get unused numbers."""
  rows = vectors[client]
  taken = np.concatenate([np.empty(0, int), *others.values()])
  numbers, counts = np.unique(taken, return_counts=True)
  sums = np.zeros([len(numbers), rows.shape[1]])
  for other, places in others.items():
    sums[np.searchsorted(numbers, places)] += vectors[other]
  num_new = min(len(rows), limit - len(numbers))
  num_clients = len(others) + 1
  gain = gains(
    rows, sums, counts, process, num_clients=num_clients, num_new=num_new
  )
  _, found = optimize.linear_sum_assignment(gain, maximize=True)
  unused = np.max(taken, initial=-1) + 1
  return np.append(numbers, unused + np.arange(num_new))[found]


def _in_order(places):
  """Numbers global neurons by the first client, then its order, from 0."""
  numbers, firsts = np.unique(
    np.concatenate(list(places.values())), return_index=True
  )
  ranks = np.argsort(np.argsort(firsts))
  return {j: ranks[np.searchsorted(numbers, p)] for j, p in places.items()}
