"""Disk that features of the clients' rows take, before they are computed."""

import dataclasses
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.printing import format_bytes

_LABEL_BYTES = 4
_FEATURE_BYTES = 2
_BASIS_BYTES = 8


@dataclasses.dataclass(frozen=True)
class FeaturesOnDisk:
  """Expected size of the features of a run."""

  num_features: int
  """Of a row."""
  row_bytes: int
  """Size of the features of a row, its label included."""
  num_rows: int | None
  """Rows of all clients; None, as the next two: not known."""
  feature_bytes: int | None
  """Size of the features."""
  basis_bytes: int | None
  """Size of the eigenbases of the clients' Gram matrices."""

  @property
  def num_bytes(self) -> int | None:
    """Size of both."""
    if self.feature_bytes is None:
      return None
    return self.feature_bytes + self.basis_bytes

  def __str__(self) -> str:
    row = f'{format_bytes(self.row_bytes)} a row'
    if self.num_rows is None:
      return row
    return (
      f'{format_bytes(self.feature_bytes)} of features, '
      f'{format_bytes(self.basis_bytes)} of bases; '
      f'{self.num_rows:,} rows, {row}'
    )


def features_on_disk(
  config: TrainConfig, num_clients: int | None = None
) -> FeaturesOnDisk | None:
  """Returns the most that the features of a run take; None if there are none.

  Args:
    config: The run's.
    num_clients: Clients, each of which fills
      `client_work.max_sequences_per_client`. None: not known.
  """
  if config.method.feature_sizes(config) is None:
    return None
  cap = config.client_work.max_sequences_per_client
  if num_clients is None or cap is None:
    return of_rows(config, None)
  return of_rows(config, [cap] * num_clients)


def of_rows(
  config: TrainConfig, rows: Sequence[int] | None
) -> FeaturesOnDisk:
  """Returns the size of features.

  Args:
    config: Of a run with features.
    rows: Rows of each client. None: not known.
  """
  num_features, max_gram_rows = config.method.feature_sizes(config)
  row_bytes = _FEATURE_BYTES * num_features + _LABEL_BYTES
  if rows is None:
    return FeaturesOnDisk(num_features, row_bytes, None, None, None)
  return FeaturesOnDisk(
    num_features,
    row_bytes,
    sum(rows),
    sum(rows) * row_bytes,
    # Vectors, and two sums for each of them.
    sum(_BASIS_BYTES * n * (n + 2) for n in rows if n <= max_gram_rows),
  )
