"""The three Dirichlet conventions that papers mix up, as partition schemes.

They have one parameter alpha. The smaller it is, the fewer classes a client
has; they differ in whose shares are drawn, and so in the sizes of clients.
Arguments and results are those of every scheme, see partitions.py.
"""

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.images.label_draws import (
  MAX_ATTEMPTS,
  Parts,
  collect,
  cut,
  log_dirichlet,
  shuffled,
  to_shares,
)
from tff_fedfish.errors import UserError


def per_class_over_clients(
  classes: Parts,
  *,
  num_clients: int,
  seed: int,
  alpha: float,
  min_examples: int = 10,
) -> Parts:
  """Divides each class over the clients; clients differ in size.

  For each class in turn, shares ~ Dir(alpha) over the clients; a client that
  already holds n / num_clients examples or more gets none. All is drawn again
  until every client has `min_examples`, >= 0. As in NIID-Bench (Li et al.,
  2022), and in TCT and MOON after it.
  """
  num_examples = sum(map(len, classes))
  for attempt in range(MAX_ATTEMPTS):
    generator = randomness.generator(
      'partition/per_class_over_clients', seed, attempt
    )
    sizes = np.zeros(num_clients, np.int64)
    pieces = []
    for rows in shuffled(generator, classes):
      logs = log_dirichlet(generator, np.full(num_clients, alpha))
      # Of the clients at least one is below the mean, or no rows are left.
      has_room = sizes * num_clients < num_examples
      parts = cut(rows, to_shares(logs, has_room)) if len(rows) else []
      for client, part in enumerate(parts):
        sizes[client] += len(part)
        pieces.append((client, part))
    if sizes.min() >= min_examples:
      return collect(num_clients, pieces)
  raise UserError(
    f'`min_examples` is {min_examples}, but in {MAX_ATTEMPTS} draws with '
    f'`alpha` {alpha} some of the {num_clients} clients always had fewer. '
    'Raise `alpha`, or lower `min_examples` or `num_clients`.'
  )


def per_client_over_classes_normalised(
  classes: Parts, *, num_clients: int, seed: int, alpha: float
) -> Parts:
  """Splits each class in proportion to the clients' sampled preferences.

  Client i draws q_i ~ Dir(alpha) over the classes. A class is divided in
  proportion to q_i[class]: as if each client sought its own mix, and classes
  were then rationed. Clients differ in size and may be empty. As in the code of
  FedFisher (Jhunjhunwala et al., 2024).
  """
  purpose = 'partition/per_client_over_classes_normalised'
  # [clients, classes], logs of q_i: in logs, as all may be below any double.
  logs = np.empty((num_clients, len(classes)))
  for client in range(num_clients):
    drawn = log_dirichlet(
      randomness.generator(purpose, seed, client), np.full(len(classes), alpha)
    )
    logs[client] = drawn - np.logaddexp.reduce(drawn)
  classes = shuffled(randomness.generator(purpose, seed), classes)
  return collect(
    num_clients,
    [
      piece
      for label, rows in enumerate(classes)
      for piece in enumerate(cut(rows, to_shares(logs[:, label])))
    ],
  )


def per_client_sampling(
  classes: Parts, *, num_clients: int, seed: int, alpha: float
) -> Parts:
  """Lets clients of equal size draw their examples one after the other.

  A client draws q ~ Dir(alpha * prior), prior being the classes' frequencies,
  and then n // num_clients times a class by q and an example of it, without
  replacement. A class that is used up is left out, and q is normalised over the
  others. The n % num_clients rows that remain belong to no client. As in Hsu et
  al. (2019), "Measuring the effects of non-identical data distribution", and
  google-research/federated.

  Alpha is the concentration of all classes together: with ten equal classes and
  alpha 1, each class has the concentration 0.1.
  """
  purpose = 'partition/per_client_sampling'
  left = shuffled(randomness.generator(purpose, seed), classes)
  left = [rows.tolist() for rows in left]
  counts = np.array([len(rows) for rows in left])
  num_examples = counts.sum()
  available = counts > 0
  pieces = []
  for client in range(num_clients):
    generator = randomness.generator(purpose, seed, client)
    logs = log_dirichlet(generator, alpha * counts / num_examples)
    thresholds = _thresholds(logs, available)
    chosen = []
    for uniform in generator.random_sample(num_examples // num_clients):
      label = int(np.searchsorted(thresholds, uniform, side='right'))
      chosen.append(left[label].pop())
      if not left[label]:
        available[label] = False
        if available.any():
          thresholds = _thresholds(logs, available)
    pieces.append((client, np.array(chosen, np.int64)))
  return collect(num_clients, pieces)


def _thresholds(logs: np.ndarray, allowed: np.ndarray) -> np.ndarray:
  """Returns where the share of each entry of `to_shares` ends in [0, 1]."""
  sums = np.cumsum(to_shares(logs, allowed))
  # Exactly 1 at the last entry with a share, so that none behind it is drawn.
  return sums / sums[-1]
