"""Partitions in which a client has few classes, or one latent distribution.

Each takes labels (or clusters), int [n], and returns the rows of each client,
int64, ascending. It depends on its arguments only.
"""

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.images.label_draws import (
  MAX_ATTEMPTS,
  check_count,
  collect,
  cut,
  shuffled_classes,
)
from tff_fedfish.errors import UserError


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

  Args:
    labels: Int [n], from 0 to num_classes - 1.
    num_classes: Classes that there are.
    num_clients: Clients to make.
    seed: The `partition_seed`.
    classes_per_client: #C, from 1 to num_classes.

  Returns:
    `num_clients` arrays of rows, together all of them.

  Raises:
    ValueError: If a count is no int or too small.
    UserError: If a parameter is out of range, if there are more classes than
      the clients can have, or if 1,000 draws leave a class to nobody.
  """
  check_count('num_clients', num_clients)
  check_count('classes_per_client', classes_per_client)
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
  return collect(
    num_clients,
    [
      piece
      for having, rows in zip(holders, classes, strict=True)
      if having
      for piece in zip(having, np.array_split(rows, len(having)), strict=True)
    ],
  )


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
  gets two of its shards. As FedFomo (Zhang et al., 2021) does after the code of
  LG-FedAvg (Liang et al., 2020).

  Args:
    labels: Int [n], from 0 to num_classes - 1.
    num_classes: Classes that there are.
    num_clients: Clients to make.
    seed: The `partition_seed`.
    shards_per_client: Shards of a client, >= 1; the clients' shards together
      are a multiple of num_classes.

  Returns:
    `num_clients` arrays of rows, together all of them.

  Raises:
    ValueError: If a count is no int or too small.
    UserError: If a parameter is out of range.
  """
  held = class_rows(
    num_classes=num_classes,
    num_clients=num_clients,
    seed=seed,
    shards_per_client=shards_per_client,
  )
  shards_per_class = held.size // num_classes
  classes = shuffled_classes(
    randomness.generator('partition/pathological_shards/rows', seed),
    labels,
    num_classes,
  )
  shards = [iter(np.array_split(rows, shards_per_class)) for rows in classes]
  return collect(
    num_clients,
    [
      (client, next(shards[label]))
      for client, row in enumerate(held)
      for label in row
    ],
  )


def class_rows(
  *, num_classes: int, num_clients: int, seed: int, shards_per_client: int
) -> np.ndarray:
  """Returns the classes of each client's shards in `pathological_shards`.

  A list that names each class equally often is shuffled and cut into rows.

  Args:
    num_classes: As in `pathological_shards`, like all that follow.
    num_clients: Clients to make, >= 1.
    seed: The seed.
    shards_per_client: Shards of each client, >= 1.

  Returns:
    Int64 [num_clients, shards_per_client].

  Raises:
    ValueError: If a count is no int or too small.
    UserError: If a parameter is out of range.
  """
  check_count('num_clients', num_clients)
  check_count('shards_per_client', shards_per_client)
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
  clusters: np.ndarray, *, num_clients: int, seed: int
) -> list[np.ndarray]:
  """Gives each client examples of one cluster, its latent distribution.

  Client i draws from the i-th cluster in turn. The rows of a cluster are
  shuffled and divided evenly among its clients. As in FedFomo (Zhang et al.,
  2021); `latent_clusters` makes clusters as theirs are, and the labels
  themselves are what their code uses for CIFAR-10 with ten distributions.

  Args:
    clusters: Int [n], the cluster of each example.
    num_clients: Clients to make, at least one per cluster.
    seed: The `partition_seed`.

  Returns:
    `num_clients` arrays of rows, together all of them.

  Raises:
    UserError: If there are fewer clients than clusters.
  """
  check_count('num_clients', num_clients)
  names = np.unique(clusters)
  if num_clients < len(names):
    raise UserError(
      f'`num_clients` must be at least the number of latent distributions, '
      f'{len(names)}, found {num_clients}. Raise it.'
    )
  generator = randomness.generator('partition/latent_distributions', seed)
  pieces = []
  for number, name in enumerate(names):
    rows = generator.permutation(np.flatnonzero(clusters == name))
    clients = range(number, num_clients, len(names))
    pieces += zip(clients, np.array_split(rows, len(clients)), strict=True)
  return collect(num_clients, pieces)


def matching_split(
  labels: np.ndarray, histograms: np.ndarray, *, seed: int
) -> list[np.ndarray]:
  """Divides a test split so that each client is tested on what it trains on.

  Every class is shuffled and divided in proportion to the clients' training
  examples of it. For shards this hands out the test split by the same
  `class_rows`, as FedFomo does, and for latent distributions by cluster.

  Args:
    labels: Int [n], classes or clusters of the test examples.
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
