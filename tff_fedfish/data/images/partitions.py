"""Partitions of labelled examples among clients, each as in its paper.

Every scheme is a function of

  classes: Rows of each class, int64, ascending.
  num_clients: Clients to make, >= 1.
  seed: The `partition_seed`.

and of parameters of its own, which are settings of `config.partition`. It
returns the rows of each client: `num_clients` arrays, int64, ascending,
together all rows unless stated otherwise. The result depends on the arguments
only. A parameter that does not fit the labels raises a UserError.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.images.dirichlet_partitions import (
  per_class_over_clients,
  per_client_over_classes_normalised,
  per_client_sampling,
)
from tff_fedfish.data.images.label_draws import (
  MAX_ATTEMPTS,
  Parts,
  collect,
  cut,
  rows_by_class,
  shuffled,
)
from tff_fedfish.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Partition:
  """How examples are divided among clients; values only, as in a config."""

  scheme: str
  """One of `SCHEMES`."""
  num_clients: int
  """Clients to make, >= 1; some may get no example."""
  seed: int
  """The `partition_seed`."""
  parameters: tuple[tuple[str, int | float], ...] = ()
  """(name, value) of the parameters that the scheme takes beside these."""

  def divide(self, labels: np.ndarray, *, num_classes: int) -> Parts:
    """Returns the rows of each client; see the top of this module."""
    return SCHEMES[self.scheme].function(
      rows_by_class(labels, num_classes),
      num_clients=self.num_clients,
      seed=self.seed,
      **dict(self.parameters),
    )


def fixed_classes(
  classes: Parts, *, num_clients: int, seed: int, classes_per_client: int
) -> Parts:
  """Gives each client examples of a fixed number of classes.

  Client i has the class i mod num_classes and `classes_per_client` - 1 others,
  drawn without replacement. The rows of a class are shuffled and divided evenly
  among those that have it. Named #C in NIID-Bench (Li et al., 2022), used by
  TCT (Yu et al., 2022). Their code fails if nobody has some class; here the
  classes are drawn again.
  """
  num_classes = len(classes)
  if classes_per_client > num_classes:
    raise UserError(
      f'`classes_per_client` must not exceed the {num_classes} classes, found '
      f'{classes_per_client}. Lower it.'
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
    if all(
      clients or not len(rows)
      for clients, rows in zip(holders, classes, strict=True)
    ):
      break
  else:
    raise UserError(
      f'`classes_per_client` is {classes_per_client}, but in {MAX_ATTEMPTS} '
      f'draws some class always had none of the {num_clients} clients. Raise '
      '`classes_per_client` or `num_clients`.'
    )
  return _divide_evenly(num_clients, holders, shuffled(generator, classes))


def pathological_shards(
  classes: Parts, *, num_clients: int, seed: int, shards_per_client: int
) -> Parts:
  """Cuts each class into shards and gives each client the same number of them.

  A list that names each class equally often is shuffled and cut into rows, the
  classes of each client; a client with a class twice gets two of its shards.
  The clients' shards together are a multiple of num_classes. As FedFomo (Zhang
  et al., 2021) does after the code of LG-FedAvg (Liang et al., 2020).
  """
  num_classes, num_shards = len(classes), num_clients * shards_per_client
  if num_shards % num_classes:
    raise UserError(
      f'`num_clients` x `shards_per_client` must be a multiple of the '
      f'{num_classes} classes, found {num_clients} x {shards_per_client}. '
      'Change one of them.'
    )
  names = np.repeat(np.arange(num_classes), num_shards // num_classes)
  generator = randomness.generator('partition/pathological_shards', seed)
  held = generator.permutation(names).reshape(num_clients, shards_per_client)
  generator = randomness.generator('partition/pathological_shards/rows', seed)
  holders = [np.nonzero(held == label)[0] for label in range(num_classes)]
  return _divide_evenly(num_clients, holders, shuffled(generator, classes))


def latent_distributions(
  classes: Parts, *, num_clients: int, seed: int
) -> Parts:
  """Gives each client examples of one class, its latent distribution.

  Client i draws from the i-th class in turn, so there is at least one client
  per class. The rows of a class are shuffled and divided evenly among its
  clients. As the code of FedFomo (Zhang et al., 2021).
  """
  num_present = sum(len(rows) > 0 for rows in classes)
  if num_clients < num_present:
    raise UserError(
      f'`num_clients` must be at least the number of latent distributions, '
      f'{num_present}, found {num_clients}. Raise it.'
    )
  generator = randomness.generator('partition/latent_distributions', seed)
  classes = [rows for rows in shuffled(generator, classes) if len(rows)]
  holders = [range(i, num_clients, num_present) for i in range(num_present)]
  return _divide_evenly(num_clients, holders, classes)


def matching_split(
  labels: np.ndarray, histograms: np.ndarray, *, seed: int
) -> Parts:
  """Divides a test split so that each client is tested on what it trains on.

  Every class is shuffled and divided in proportion to the clients' training
  examples of it. With shards, clients then have the same classes in testing, as
  in FedFomo.

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
  classes = shuffled(generator, rows_by_class(labels, num_classes))
  return collect(
    num_clients,
    [
      piece
      for counts, rows in zip(histograms.T, classes, strict=True)
      if counts.any()
      for piece in enumerate(cut(rows, counts))
    ],
  )


def _divide_evenly(num_clients, holders, classes) -> Parts:
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


class Scheme(NamedTuple):
  """A scheme of `Partition`."""

  function: Callable[..., Parts]
  """Divides the rows of classes."""
  required: tuple[str, ...] = ()
  """Parameters that it takes."""
  optional: tuple[str, ...] = ()
  """Parameters that have a default."""


SCHEMES: Mapping[str, Scheme] = types.MappingProxyType(
  {
    scheme.function.__name__: scheme
    for scheme in (
      Scheme(per_class_over_clients, ('alpha',), ('min_examples',)),
      Scheme(per_client_over_classes_normalised, ('alpha',)),
      Scheme(per_client_sampling, ('alpha',)),
      Scheme(fixed_classes, ('classes_per_client',)),
      Scheme(pathological_shards, ('shards_per_client',)),
      Scheme(latent_distributions),
    )
  }
)
"""Schemes by name."""
