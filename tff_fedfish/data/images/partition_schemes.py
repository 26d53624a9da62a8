"""Partitions of labelled examples among clients, each as in its paper.

All take

  labels: Int [n], from 0 to num_classes - 1.
  num_classes: Classes that there are.
  num_clients: Clients to make, >= 1.
  seed: The `partition_seed`.

and return the rows of each client: `num_clients` arrays, int64, ascending,
together all rows unless stated otherwise. The result depends on the arguments
only. A parameter that does not fit the labels raises a UserError.

The three Dirichlet conventions that papers mix up have one parameter alpha. The
smaller it is, the fewer classes a client has; they differ in whose shares are
drawn, and so in the sizes of clients.
"""

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.images.label_draws import (
  collect,
  cut,
  draw,
  log_dirichlet,
  shuffled_classes,
  to_shares,
  to_thresholds,
)
from tff_fedfish.errors import UserError

MAX_ATTEMPTS = 1_000
"""Draws before a scheme that may redraw gives up."""


def per_class_over_clients(
  labels: np.ndarray,
  *,
  num_classes: int,
  num_clients: int,
  seed: int,
  alpha: float,
  min_examples: int = 10,
) -> list[np.ndarray]:
  """Divides each class over the clients; clients differ in size.

  For each class in turn, shares ~ Dir(alpha) over the clients; a client that
  already holds n / num_clients examples or more gets none. All is drawn again
  until every client has `min_examples`, >= 0. As in NIID-Bench (Li et al.,
  2022), and in TCT and MOON after it.
  """
  if num_clients * min_examples > len(labels):
    raise UserError(
      f'`num_clients` x `min_examples` must not exceed the {len(labels)} '
      f'examples, found {num_clients} x {min_examples}. Lower one of them.'
    )
  for attempt in range(MAX_ATTEMPTS):
    generator = randomness.generator(
      'partition/per_class_over_clients', seed, attempt
    )
    sizes = np.zeros(num_clients, np.int64)
    pieces = []
    for rows in shuffled_classes(generator, labels, num_classes):
      logs = log_dirichlet(generator, np.full(num_clients, alpha))
      # Of the clients at least one is below the mean, or no rows are left.
      has_room = sizes * num_clients < len(labels)
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
  labels: np.ndarray,
  *,
  num_classes: int,
  num_clients: int,
  seed: int,
  alpha: float,
) -> list[np.ndarray]:
  """Splits each class in proportion to the clients' sampled preferences.

  Client i draws q_i ~ Dir(alpha) over the classes. A class is divided in
  proportion to q_i[class]: as if each client sought its own mix, and classes
  were then rationed. Clients differ in size and may be empty. As in the code of
  FedFisher (Jhunjhunwala et al., 2024).
  """
  purpose = 'partition/per_client_over_classes_normalised'
  # [clients, classes], logs of q_i: in logs, as all may be below any double.
  logs = np.empty((num_clients, num_classes))
  for client in range(num_clients):
    drawn = log_dirichlet(
      randomness.generator(purpose, seed, client), np.full(num_classes, alpha)
    )
    logs[client] = drawn - np.logaddexp.reduce(drawn)
  classes = shuffled_classes(
    randomness.generator(purpose, seed), labels, num_classes
  )
  return collect(
    num_clients,
    [
      piece
      for label, rows in enumerate(classes)
      for piece in enumerate(cut(rows, to_shares(logs[:, label])))
    ],
  )


def per_client_sampling(
  labels: np.ndarray,
  *,
  num_classes: int,
  num_clients: int,
  seed: int,
  alpha: float,
) -> list[np.ndarray]:
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
  if num_clients > len(labels):
    raise UserError(
      f'`num_clients` must not exceed the {len(labels)} examples, found '
      f'{num_clients}. Lower it.'
    )
  purpose = 'partition/per_client_sampling'
  left = shuffled_classes(
    randomness.generator(purpose, seed), labels, num_classes
  )
  left = [rows.tolist() for rows in left]
  counts = np.array([len(rows) for rows in left])
  available = counts > 0
  pieces = []
  for client in range(num_clients):
    generator = randomness.generator(purpose, seed, client)
    logs = log_dirichlet(generator, alpha * counts / len(labels))
    thresholds = to_thresholds(logs, available)
    chosen = []
    for uniform in generator.random_sample(len(labels) // num_clients):
      label = draw(thresholds, uniform)
      chosen.append(left[label].pop())
      if not left[label]:
        available[label] = False
        if available.any():
          thresholds = to_thresholds(logs, available)
    pieces.append((client, np.array(chosen, np.int64)))
  return collect(num_clients, pieces)


def fixed_classes(
  labels: np.ndarray,
  *,
  num_classes: int,
  num_clients: int,
  seed: int,
  classes_per_client: int,
) -> list[np.ndarray]:
  """Gives each client examples of a fixed number of classes.

  Client i has the class i mod num_classes and `classes_per_client` - 1 others,
  drawn without replacement. The rows of a class are shuffled and divided evenly
  among those that have it. Named #C in NIID-Bench (Li et al., 2022), used by
  TCT (Yu et al., 2022). Their code fails if nobody has some class; here the
  classes are drawn again.
  """
  present = np.unique(labels)
  if classes_per_client > num_classes:
    raise UserError(
      f'`classes_per_client` must not exceed the {num_classes} classes, found '
      f'{classes_per_client}. Lower it.'
    )
  if num_clients * classes_per_client < len(present):
    raise UserError(
      f'`num_clients` x `classes_per_client` must reach the {len(present)} '
      f'classes that there are, found {num_clients} x {classes_per_client}. '
      'Raise one of them.'
    )
  for attempt in range(MAX_ATTEMPTS):
    generator = randomness.generator('partition/fixed_classes', seed, attempt)
    holders = [[] for _ in range(num_classes)]
    for client in range(num_clients):
      first = client % num_classes
      others = np.delete(np.arange(num_classes), first)
      drawn = generator.permutation(others)[: classes_per_client - 1]
      for label in (first, *drawn):
        holders[label].append(client)
    if all(holders[label] for label in present):
      break
  else:
    raise UserError(
      f'`classes_per_client` is {classes_per_client}, but in {MAX_ATTEMPTS} '
      f'draws some class always had none of the {num_clients} clients. Raise '
      '`classes_per_client` or `num_clients`.'
    )
  classes = shuffled_classes(generator, labels, num_classes)
  return _divide_evenly(num_clients, holders, classes)


def pathological_shards(
  labels: np.ndarray,
  *,
  num_classes: int,
  num_clients: int,
  seed: int,
  shards_per_client: int,
) -> list[np.ndarray]:
  """Cuts each class into shards and gives each client the same number of them.

  The classes of a client are a row of `class_rows`; one that has a class twice
  gets two of its shards. The clients' shards together are a multiple of
  num_classes. As FedFomo (Zhang et al., 2021) does after the code of LG-FedAvg
  (Liang et al., 2020).
  """
  held = class_rows(
    num_classes=num_classes,
    num_clients=num_clients,
    seed=seed,
    shards_per_client=shards_per_client,
  )
  classes = shuffled_classes(
    randomness.generator('partition/pathological_shards/rows', seed),
    labels,
    num_classes,
  )
  holders = [np.nonzero(held == label)[0] for label in range(num_classes)]
  return _divide_evenly(num_clients, holders, classes)


def class_rows(
  *, num_classes: int, num_clients: int, seed: int, shards_per_client: int
) -> np.ndarray:
  """Returns the classes of each client's shards in `pathological_shards`.

  A list that names each class equally often is shuffled and cut into rows:
  int64 [num_clients, shards_per_client].
  """
  num_shards = num_clients * shards_per_client
  if num_shards % num_classes:
    raise UserError(
      f'`num_clients` x `shards_per_client` must be a multiple of the '
      f'{num_classes} classes, found {num_clients} x {shards_per_client}. '
      'Change one of them.'
    )
  tokens = np.repeat(np.arange(num_classes), num_shards // num_classes)
  generator = randomness.generator('partition/pathological_shards', seed)
  return generator.permutation(tokens).reshape(num_clients, shards_per_client)


def latent_distributions(
  labels: np.ndarray, *, num_classes: int, num_clients: int, seed: int
) -> list[np.ndarray]:
  """Gives each client examples of one class, its latent distribution.

  Client i draws from the i-th class in turn, so there is at least one client
  per class. The rows of a class are shuffled and divided evenly among its
  clients. As the code of FedFomo (Zhang et al., 2021).
  """
  num_present = len(np.unique(labels))
  if num_clients < num_present:
    raise UserError(
      f'`num_clients` must be at least the number of latent distributions, '
      f'{num_present}, found {num_clients}. Raise it.'
    )
  generator = randomness.generator('partition/latent_distributions', seed)
  classes = shuffled_classes(generator, labels, num_classes)
  classes = [rows for rows in classes if len(rows)]
  holders = [range(i, num_clients, num_present) for i in range(num_present)]
  return _divide_evenly(num_clients, holders, classes)


def matching_split(
  labels: np.ndarray, histograms: np.ndarray, *, seed: int
) -> list[np.ndarray]:
  """Divides a test split so that each client is tested on what it trains on.

  Every class is shuffled and divided in proportion to the clients' training
  examples of it. For shards this hands out the test split by the same
  `class_rows`, as FedFomo does.

  Args:
    labels: Int [n], classes of the test examples.
    histograms: Int [clients, classes], training examples of each.
    seed: The `partition_seed`.

  Returns:
    As many arrays of rows as clients. A class that no client trains on belongs
    to none.
  """
  num_clients, num_classes = histograms.shape
  generator = randomness.generator('partition/matching_split', seed)
  classes = shuffled_classes(generator, labels, num_classes)
  return collect(
    num_clients,
    [
      piece
      for counts, rows in zip(histograms.T, classes, strict=True)
      if counts.any()
      for piece in enumerate(cut(rows, counts))
    ],
  )


def _divide_evenly(num_clients, holders, classes) -> list[np.ndarray]:
  """Divides the rows of each class among the clients that hold it."""
  return collect(
    num_clients,
    [
      piece
      for clients, rows in zip(holders, classes, strict=True)
      if len(clients)
      for piece in zip(clients, np.array_split(rows, len(clients)), strict=True)
    ],
  )
