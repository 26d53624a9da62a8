"""Principal components and k-means, by hand and on clear clusters."""

import numpy as np
import pytest

from tff_fedfish.data.images.latent_clusters import (
  cluster,
  principal_components,
)
from tff_fedfish.errors import UserError


def test_components_by_hand():
  # Along (3, 4) / 5 the coordinates are 5 and -5, along (4, -3) / 5 they are
  # 0.5 and -0.5; all around (10, 20).
  points = np.array([[3, 4], [-3, -4], [0.4, -0.3], [-0.4, 0.3]]) + [10, 20]
  expected = [[5, 0], [-5, 0], [0, 0.5], [0, -0.5]]
  np.testing.assert_allclose(
    principal_components(points, 2), expected, atol=1e-9
  )
  np.testing.assert_allclose(
    principal_components(points, 1), np.array(expected)[:, :1], atol=1e-9
  )


def test_more_components_than_there_are():
  with pytest.raises(
    UserError, match='the width of the embeddings, 3, found 256. Lower it'
  ):
    principal_components(np.zeros((5, 3)))


def _blobs(num_blobs=4, num_points=30):
  """Points around far corners, in turn."""
  random = np.random.RandomState(0)
  corners = 10 * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[:num_blobs]
  return np.concatenate([corners] * num_points) + random.normal(
    size=(num_blobs * num_points, 2)
  )


def test_clear_clusters_are_found():
  found = cluster(_blobs(), num_clusters=4, seed=1)
  assert found.dtype == np.int32
  # Points i and i + 4 are of one corner.
  assert np.all(found.reshape(-1, 4) == found[:4])
  assert sorted(found[:4]) == [0, 1, 2, 3]
  np.testing.assert_array_equal(
    found, cluster(_blobs(), num_clusters=4, seed=1)
  )


def test_centres_move_to_the_means_by_hand():
  # 0, 1, 2 and 9: from any two centres the ends are {0, 1, 2} and {9}, with
  # squares 1 + 0 + 1 = 2; a cut elsewhere has at least 0.5 + 24.5 = 25.
  points = np.array([[0.0], [1.0], [9.0], [2.0]])
  found = cluster(points, num_clusters=2, seed=3)
  assert found[0] == found[1] == found[3] != found[2]


def test_the_best_restart_is_kept():
  # Three pairs; with all first centres in two of them a single run can end
  # with two pairs in one cluster.
  points = np.array([[0.0], [1], [20], [21], [30], [31]])
  for seed in range(10):
    found = cluster(points, num_clusters=3, seed=seed)
    assert found[0] == found[1] and found[2] == found[3]
    assert found[4] == found[5] and len(set(found)) == 3


def test_more_clusters_than_points():
  points = np.array([[0.0], [1.0], [1.0]])
  with pytest.raises(
    UserError, match='not exceed the 2 distinct points, found 3. Lower it'
  ):
    cluster(points, num_clusters=3, seed=1)
