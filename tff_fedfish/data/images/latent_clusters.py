"""Clusters of embedded images, FedFomo's latent distributions.

Zhang et al. (2021), "Personalized federated learning with first order model
optimization", embed train and test images together by a VGG-11, keep the first
256 principal components, and cluster those by k-means. The embeddings are the
caller's; their code uses the second dense layer of a network that was
fine-tuned to the corpus.
"""

import numpy as np

from tff_fedfish.data import randomness
from tff_fedfish.data.images.label_draws import check_count, draw
from tff_fedfish.errors import UserError


def principal_components(
  embeddings: np.ndarray, num_components: int = 256
) -> np.ndarray:
  """Returns the coordinates of points along their directions of most variance.

  Args:
    embeddings: Float [n, width].
    num_components: Directions to keep, at most `width`.

  Returns:
    Float64 [n, num_components], of mean 0, the largest variance first. The sign
    of a direction is such that its largest entry is positive.

  Raises:
    UserError: If there are fewer directions than asked for.
  """
  check_count('num_components', num_components)
  width = embeddings.shape[1]
  if num_components > width:
    raise UserError(
      f'`num_components` must not exceed the width of the embeddings, {width}, '
      f'found {num_components}. Lower it.'
    )
  centred = embeddings - embeddings.mean(axis=0, dtype=np.float64)
  # Ascending variance; one direction in each column.
  _, directions = np.linalg.eigh(centred.T @ centred)
  directions = directions[:, ::-1][:, :num_components]
  largest = np.abs(directions).argmax(axis=0)
  signs = np.sign(directions[largest, np.arange(num_components)])
  return centred @ (directions * signs)


def cluster(
  points: np.ndarray,
  *,
  num_clusters: int,
  seed: int,
  num_restarts: int = 5,
  max_iterations: int = 100,
) -> np.ndarray:
  """Returns the cluster of each point by k-means.

  Centres are drawn by k-means++ (Arthur & Vassilvitskii, 2007). Of the restarts
  the one with the smallest sum of squared distances is kept.

  Args:
    points: Float [n, width].
    num_clusters: Clusters, at most the number of distinct points.
    seed: The `partition_seed`.
    num_restarts: Runs from other centres, >= 1.
    max_iterations: Moves of the centres in a run, >= 1.

  Returns:
    Int32 [n], from 0 to num_clusters - 1.

  Raises:
    ValueError: If a count is no int or too small.
    UserError: If a parameter is out of range.
  """
  for name, value in (
    ('num_clusters', num_clusters),
    ('num_restarts', num_restarts),
    ('max_iterations', max_iterations),
  ):
    check_count(name, value)
  points = np.asarray(points, np.float64)
  num_distinct = len(np.unique(points, axis=0))
  if num_clusters > num_distinct:
    raise UserError(
      f'`num_clusters` must not exceed the {num_distinct} distinct points, '
      f'found {num_clusters}. Lower it.'
    )
  best, best_sum = None, np.inf
  for restart in range(num_restarts):
    generator = randomness.generator('latent_clusters', seed, restart)
    centres = _first_centres(points, num_clusters, generator)
    for _ in range(max_iterations):
      distances = _square_distances(points, centres)
      nearest = distances.argmin(axis=1)
      moved = _means(points, nearest, centres)
      if np.array_equal(moved, centres):
        break
      centres = moved
    distances = _square_distances(points, centres)
    total = distances.min(axis=1).sum()
    if total < best_sum:
      best, best_sum = distances.argmin(axis=1), total
  return best.astype(np.int32)


def _first_centres(
  points: np.ndarray, num_clusters: int, generator: np.random.RandomState
) -> np.ndarray:
  """Draws points as centres, each by its squared distance to those before."""
  centres = [points[generator.randint(len(points))]]
  nearest = np.full(len(points), np.inf)
  while len(centres) < num_clusters:
    distances = ((points - centres[-1]) ** 2).sum(axis=1)
    nearest = np.minimum(nearest, distances)
    sums = np.cumsum(nearest)
    place = draw(sums / sums[-1], generator.random_sample())
    centres.append(points[place])
  return np.stack(centres)


def _square_distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
  """Returns [points, centres]; by centre, as all differences take too much."""
  return np.stack(
    [((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1
  )


def _means(
  points: np.ndarray, nearest: np.ndarray, centres: np.ndarray
) -> np.ndarray:
  """Returns the mean of each centre's points; without any it stays."""
  return np.stack(
    [
      points[nearest == number].mean(axis=0)
      if (nearest == number).any()
      else centre
      for number, centre in enumerate(centres)
    ]
  )
