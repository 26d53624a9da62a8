"""Cost of counting the rows of merged clients, which a first run does once."""

import dataclasses

from tff_fedfish.data import row_counts
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError
from tff_fedfish.planning.units import format_bytes
from tff_fedfish.training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class RowCounting:
  """Cost of counting the rows of a corpus, once before round 1."""

  num_groups: int
  """Groups of the corpus, held-out ones included."""
  num_documents: int
  """Their documents, each tokenized once."""
  cache_bytes: int
  """Kept in the user's cache."""

  def __str__(self) -> str:
    return (
      f'tokenizes {self.num_documents:,} documents of {self.num_groups:,} '
      f'groups, keeps {format_bytes(self.cache_bytes)} in the cache; once per '
      'corpus, vocabulary and sequence length'
    )


def of_config(config: TrainConfig) -> RowCounting | None:
  """Returns the cost for a config.

  Args:
    config: The run's config.

  Returns:
    The cost; None where no groups are merged, or the corpus is not there.
  """
  if not config.partition.merges_groups:
    return None
  try:
    counts = read_manifest(config.data.directory).counts
  except UserError:
    return None
  return RowCounting(
    counts.num_groups,
    counts.records_out,
    row_counts.file_bytes(counts.num_groups),
  )
