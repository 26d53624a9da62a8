"""Clusters of images, the latent distributions of FedFomo.

Zhang et al. (2021) cluster the embeddings of a network: 256 principal
components of them, then k-means. Here they are the components of the pixels;
the clusters of any other embedding can be read from a file.
"""

import contextlib
import csv
import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Iterable

import numpy as np

from tff_fedfish import files
from tff_fedfish.data import randomness
from tff_fedfish.errors import UserError

SOURCES = ('labels', 'pixels')
"""Sources of clusters that are not the path of a file."""

_HEADER = ['image', 'cluster']
_NUM_COMPONENTS = 256
# Part of every key: raised where the clusters would change.
_VERSION = 1
_NUMBERS = np.dtype('<i4')


def assign(
  source: str,
  num_clusters: int | None,
  *,
  images: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  seed: int,
) -> np.ndarray:
  """Returns the cluster of every image.

  Args:
    source: One of `SOURCES`, or the path of a file, see `read_clusters`.
    num_clusters: Clusters to make, >= 1. Of labels, each has neighbouring
      classes; None: a cluster per class. Not read with a file.
    images: uint8 [n, height, width, channels], train images first.
    labels: Int [n], from 0 to num_classes - 1.
    num_classes: Classes that there are.
    seed: The `partition_seed`.

  Returns:
    int64 [n], at least 0.

  Raises:
    UserError: If there are fewer classes or different images than clusters, or
      the file does not give each image a cluster.
  """
  if source == 'pixels':
    return load_or_cluster(images, num_clusters, seed=seed)
  if source != 'labels':
    return read_clusters(source, len(images))
  if num_clusters is None:
    return labels.astype(np.int64)
  if num_clusters > num_classes:
    raise UserError(
      f'`partition.num_clusters` must not exceed the {num_classes} classes, '
      f'found {num_clusters}. Lower it, or set `partition.clusters` to '
      "'pixels'."
    )
  return labels.astype(np.int64) * num_clusters // num_classes


def read_clusters(path: str, num_images: int) -> np.ndarray:
  """Reads the cluster of every image from a CSV file.

  The first line is `image,cluster`. Each further line is an image's number and
  its cluster's. Images are numbered from 0 in the order of the corpus's files,
  those of the train split first and then those of the test split; their lines
  may have any order. Clusters are numbered from 0.

  Args:
    path: The file, in UTF-8.
    num_images: Images of both splits.

  Returns:
    int64 [num_images], from 0 to num_images - 1.

  Raises:
    UserError: If the file cannot be read, or is not as described.
  """
  try:
    with open(path, encoding='utf-8-sig', newline='') as file:
      return _parse(csv.reader(file, strict=True), num_images)
  except OSError as cause:
    found = f'cannot be read ({cause.strerror})'
    raise _file_error(path, num_images, found) from cause
  except (ValueError, csv.Error) as cause:
    raise _file_error(path, num_images, str(cause)) from cause


def load_or_cluster(
  images: np.ndarray, num_clusters: int, *, seed: int
) -> np.ndarray:
  """Returns k-means clusters of the pixels, from the cache if they are there.

  They are kept in the user's cache directory by the images' content, their
  number, the seed and the version of scikit-learn.

  Args:
    images: uint8 [n, height, width, channels].
    num_clusters: Clusters to make, >= 1.
    seed: The `partition_seed`.

  Returns:
    int64 [n], from 0 to num_clusters - 1; each cluster has an image.

  Raises:
    UserError: If there are fewer different images than clusters.
  """
  directory = files.user_cache_directory()
  if directory is None:
    return cluster_pixels(images, num_clusters, seed=seed)
  path = directory / 'image_clusters' / _key(images, num_clusters, seed)
  content = files.read_verified(path)
  if content is not None and len(content) == len(images) * _NUMBERS.itemsize:
    return np.frombuffer(content, _NUMBERS).astype(np.int64)
  found = cluster_pixels(images, num_clusters, seed=seed)
  # A home that cannot be written to, or a full disk.
  with contextlib.suppress(OSError):
    files.write_verified(path, found.astype(_NUMBERS).tobytes())
  return found


def cluster_pixels(
  images: np.ndarray, num_clusters: int, *, seed: int
) -> np.ndarray:
  """Returns k-means clusters of the pixels' principal components.

  256 components, or all that there are; k-means++, the best of five starts, 100
  iterations at most. One thread computes them: with more, the order of sums
  differs, and with it some images' clusters. See `load_or_cluster`.
  """
  if num_clusters > len(images):
    raise _too_many(num_clusters, f'the corpus has {len(images)} images')
  # Late: the imports take a second.
  import threadpoolctl
  from sklearn import cluster, decomposition, exceptions

  random_state = randomness.seed_of('partition/clusters', seed)
  pixels = images.reshape(len(images), -1).astype(np.float32)
  components = decomposition.PCA(
    min(_NUM_COMPONENTS, *pixels.shape),
    copy=False,
    svd_solver='randomized',
    random_state=random_state,
  )
  means = cluster.KMeans(
    num_clusters, n_init=5, max_iter=100, random_state=random_state
  )
  with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
    # Too few different images, which an error says below; equal ones.
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    warnings.simplefilter('ignore', RuntimeWarning)
    found = means.fit_predict(components.fit_transform(pixels))
  num_found = len(np.unique(found))
  if num_found < num_clusters:
    raise _too_many(num_clusters, f'k-means finds only {num_found}')
  return found.astype(np.int64)


def _key(images: np.ndarray, num_clusters: int, seed: int) -> str:
  values = [
    _VERSION,
    importlib.metadata.version('scikit-learn'),
    images.shape,
    hashlib.sha256(np.ascontiguousarray(images)).hexdigest(),
    num_clusters,
    seed,
  ]
  return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _parse(rows: Iterable[list[str]], num_images: int) -> np.ndarray:
  """Returns the clusters; a ValueError says what the file does instead."""
  found = np.full(num_images, -1, np.int64)
  for line, row in enumerate(rows, 1):
    if line == 1:
      if row != _HEADER:
        raise ValueError(f'begins with {",".join(row)!r}')
      continue
    if len(row) != 2 or not all(map(_is_number, row)):
      raise ValueError(f'has {",".join(row)!r} in line {line}')
    image, number = map(int, row)
    for name, value in (('image', image), ('cluster', number)):
      if value >= num_images:
        raise ValueError(
          f'has the {name} {value} in line {line}, above {num_images - 1}'
        )
    if found[image] >= 0:
      raise ValueError(f'has the image {image} again in line {line}')
    found[image] = number
  if (found < 0).any():
    raise ValueError(
      f'lacks {np.count_nonzero(found < 0)} of them, such as the image '
      f'{found.argmin()}'
    )
  return found


def _file_error(path: str, num_images: int, found: str) -> UserError:
  return UserError(
    f'`partition.clusters` must be {" or ".join(map(repr, SOURCES))}, or a '
    f'CSV file with the columns {",".join(_HEADER)} and a line for each of the '
    f'{num_images} images, but {str(path)!r} {found}. Correct the file, or '
    'name another one.'
  )


def _is_number(text: str) -> bool:
  # No sign, no spaces, no underscores, and no more digits than are read fast.
  return text.isascii() and text.isdecimal() and len(text) < 16


def _too_many(num_clusters: int, found: str) -> UserError:
  return UserError(
    f'`partition.num_clusters` is {num_clusters}, but {found}. Lower it.'
  )
