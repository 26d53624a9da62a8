"""The Pachinko partition of CIFAR-100.

Reddi et al. (2021), "Adaptive federated optimization", appendix F, after the
Pachinko allocation model of Li & McCallum (2006): clients have a distribution
over coarse classes, and for each of these one over its fine classes.

  theta_root ~ Dir(root_alpha)   over the coarse classes, for each client
  theta_c    ~ Dir(leaf_alpha)   over the fine classes of c, for each client
"""

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.images.label_draws import (
  collect,
  draw,
  log_dirichlet,
  shuffled_classes,
  to_thresholds,
)
from tff_fedfish.errors import UserError

_PURPOSE = 'partition/pachinko'


def pachinko(
  labels: np.ndarray,
  *,
  coarse_labels: np.ndarray | None,
  num_classes: int,
  num_clients: int,
  seed: int,
  examples_per_client: int = 100,
  root_alpha: float = 0.1,
  leaf_alpha: float = 10.0,
) -> list[np.ndarray]:
  """Lets clients draw examples down a tree of classes, one after the other.

  For each example a client draws a coarse class by theta_root, a fine one by
  theta_c, and one of its examples without replacement. A fine class that is
  used up is left out and theta_c normalised over the others; so is a coarse
  class that is used up, and theta_root. Later clients find both gone. To
  normalise what was drawn over all classes, as here, and to draw over those
  that are left comes to the same distribution.

  Args:
    labels: Int [n], the fine classes.
    coarse_labels: Int [n]; each fine class has one.
    num_classes: Not read: only classes with examples count.
    num_clients: Clients to make, 500 for training in the paper, 100 for tests.
    seed: The `partition_seed`.
    examples_per_client: Examples that each draws.
    root_alpha: Concentration of each coarse class, > 0.
    leaf_alpha: Concentration of each fine class, > 0.

  Returns:
    `num_clients` arrays of `examples_per_client` rows each, int64, ascending;
    other rows belong to no client. It depends on the arguments only.

  Raises:
    UserError: If there are no coarse classes, if the clients would need more
      examples than there are, or if a fine class has two coarse ones.
  """
  if coarse_labels is None:
    raise UserError(
      "`partition.scheme` 'pachinko' requires coarse classes, which this "
      'corpus has not. Take cifar100, or another scheme.'
    )
  if num_clients * examples_per_client > len(labels):
    raise UserError(
      f'`num_clients` x `examples_per_client` must not exceed the '
      f'{len(labels)} examples, found {num_clients} x {examples_per_client}. '
      'Lower one of them.'
    )
  fine_names, fine = np.unique(labels, return_inverse=True)
  coarse_names, coarse = np.unique(coarse_labels, return_inverse=True)
  pairs = np.unique(np.stack([coarse, fine]), axis=1)
  if pairs.shape[1] != len(fine_names):
    raise UserError(
      f'each of the {len(fine_names)} fine classes must have one coarse class, '
      f'but there are {pairs.shape[1]} pairs of the two. Check the labels.'
    )
  # [coarse classes] of the fine classes of each.
  leaves = [pairs[1, pairs[0] == number] for number in range(len(coarse_names))]
  left = shuffled_classes(
    randomness.generator(_PURPOSE, seed), fine, len(fine_names)
  )
  left = [rows.tolist() for rows in left]
  pieces = []
  for client in range(num_clients):
    generator = randomness.generator(_PURPOSE, seed, client)
    root_logs = log_dirichlet(generator, np.full(len(leaves), root_alpha))
    # Each theta_c is a part of this, normalised once it is drawn from.
    leaf_logs = log_dirichlet(generator, np.full(len(fine_names), leaf_alpha))
    uniforms = generator.random_sample((examples_per_client, 2))
    rows = _draw_client(uniforms, root_logs, leaf_logs, leaves, left)
    pieces.append((client, np.array(rows, np.int64)))
  return collect(num_clients, pieces)


def _draw_client(
  uniforms: np.ndarray,
  root_logs: np.ndarray,
  leaf_logs: np.ndarray,
  leaves: list[np.ndarray],
  left: list[list[int]],
) -> list[int]:
  """Takes one client's rows out of `left`, the rows of each fine class."""

  def root_thresholds():
    available = np.array(
      [any(left[name] for name in names) for names in leaves]
    )
    return to_thresholds(root_logs, available) if available.any() else None

  def leaf_thresholds(names):
    available = np.array([bool(left[name]) for name in names])
    return to_thresholds(leaf_logs[names], available)

  root = root_thresholds()
  thresholds = {}  # Of the coarse classes drawn so far.
  rows = []
  for root_uniform, leaf_uniform in uniforms:
    number = draw(root, root_uniform)
    names = leaves[number]
    if number not in thresholds:
      thresholds[number] = leaf_thresholds(names)
    name = names[draw(thresholds[number], leaf_uniform)]
    rows.append(left[name].pop())
    if not left[name]:
      del thresholds[number]
      root = root_thresholds()
  return rows
