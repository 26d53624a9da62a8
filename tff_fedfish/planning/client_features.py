"""Disk and memory that features of the clients' rows take."""

import dataclasses
import math
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.images.image_corpora import IMAGE_CORPORA
from tff_fedfish.data.sequences import ClientRows
from tff_fedfish.printing import format_bytes

_LABEL_BYTES = 4
_FEATURE_BYTES = 2
_FLOAT64_BYTES = 8
# Rows of a batch of features, as in run/features.py.
_BATCH_ROWS = 256
# A Gram matrix, its eigenvectors, and what LAPACK works on.
_GRAM_COPIES = 4


@dataclasses.dataclass(frozen=True)
class FeaturesOnDisk:
  """Size of the features of a run."""

  num_features: int
  """Features of a row."""
  num_rows: int
  """Rows of all clients."""
  feature_bytes: int
  """Size of the features and labels."""
  basis_bytes: int
  """Size of the eigenbases of the clients' Gram matrices."""

  @property
  def num_bytes(self) -> int:
    """Size of both."""
    return self.feature_bytes + self.basis_bytes

  def __str__(self) -> str:
    return (
      f'{format_bytes(self.feature_bytes)} for {self.num_rows:,} rows of '
      f'{self.num_features:,} features, {format_bytes(self.basis_bytes)} for '
      'the bases of the clients'
    )


def on_disk(
  config: TrainConfig, client_rows: ClientRows, clients: Sequence[bytes]
) -> FeaturesOnDisk:
  """Returns the size of the features of the clients that take part."""
  counts = []
  for client_id in clients:
    rows = client_rows.training_sequences(
      client_id,
      shuffle_seed=config.seeds.shuffle_seed,
      round_num=1,
      max_sequences=config.client_work.max_sequences_per_client,
    )
    counts.append(len(rows))
  num_features, max_gram_rows = config.method.features.sizes(config)
  row_bytes = _FEATURE_BYTES * num_features + _LABEL_BYTES
  return FeaturesOnDisk(
    num_features,
    sum(counts),
    sum(counts) * row_bytes,
    # Vectors, and two sums for each of them.
    sum(_FLOAT64_BYTES * n * (n + 2) for n in counts if n <= max_gram_rows),
  )


def stages(config: TrainConfig) -> list[dict[str, int]]:
  """Returns what features add to what is resident, in the stages of their use.

  Where nothing bounds the rows of a client, all are taken to have as many.
  """
  if config.method.features is None:
    return []
  sizes = config.method.features.sizes(config)
  num_rows = config.client_work.max_sequences_per_client
  if num_rows is None:
    num_images = IMAGE_CORPORA[config.data.corpus].num_images or 0
    num_rows = math.ceil(num_images / (config.partition.num_clients or 1))
  num_classes = config.model_shape().num_classes
  batch = 4 * _BATCH_ROWS * sizes.num_features
  regression = 4 * (sizes.num_features + 1) * num_classes
  has_basis = num_rows <= sizes.max_gram_rows
  gram = has_basis * _FLOAT64_BYTES * num_rows**2
  computed = {
    'features of a client': _FEATURE_BYTES * num_rows * sizes.num_features,
    # Column by row, and their transpose.
    'batch of features': 2 * batch,
  }
  convex_step = {
    # As read, and normalized.
    'batch of features': 2 * batch,
    # Weights before and after, h, its two kept tensors, and the step.
    'regression weights': 6 * regression,
    'batch of the basis': has_basis * _FLOAT64_BYTES * _BATCH_ROWS * num_rows,
  }
  return [computed, convex_step, {'Gram matrix': _GRAM_COPIES * gram}]
