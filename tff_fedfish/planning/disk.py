"""Disk space of a run: its checkpoints, and the cache of its row counts."""

import dataclasses

from models.model_shapes import num_parameters
from tff_fedfish.communication import BYTES_PER_WEIGHT
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import row_counts
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError
from tff_fedfish.optimizers import cost
from tff_fedfish.printing import format_bytes


def checkpoint_bytes(config: TrainConfig) -> int:
  """Returns the bytes of all checkpoints of a run, at their maximum.

  The maximum is reached while the last checkpoint is written beside those that
  are kept. A checkpoint holds the weights and the server optimizer's moments.
  """
  num_moments = cost.of_settings(config.server).num_state_tensors
  num_weights = num_parameters(config.model_shape())
  settings, num_rounds = config.checkpoints, config.training.num_rounds
  # Round 0 and the last, and those between.
  num_kept = 2
  if settings.every_num_rounds:
    num_kept += (num_rounds - 1) // settings.every_num_rounds
  if settings.keep_last:
    num_spaced = 0
    if settings.keep_every_num_rounds:
      num_spaced = num_rounds // settings.keep_every_num_rounds
    num_kept = min(num_kept, 2 + settings.keep_last + num_spaced)
  return num_kept * (1 + num_moments) * num_weights * BYTES_PER_WEIGHT


@dataclasses.dataclass(frozen=True)
class RowCounting:
  """Cost of counting the rows of merged clients, once before round 1."""

  num_groups: int
  """Groups of the corpus, including held-out ones."""
  num_documents: int
  """Their documents, each tokenized once."""
  cache_bytes: int
  """Size of the counts in the user's cache."""

  def __str__(self) -> str:
    return (
      f'tokenizes {self.num_documents:,} documents of {self.num_groups:,} '
      f'groups, keeps {format_bytes(self.cache_bytes)} in the cache; once per '
      'corpus, vocabulary and sequence length'
    )


def row_counting(config: TrainConfig) -> RowCounting | None:
  """Returns the cost of counting rows.

  None if no groups are merged, or the corpus is not there.
  """
  if not config.partition.merges_groups:
    return None
  try:
    counts = read_manifest(config.data.directory).counts
  except UserError:
    return None
  num_groups = counts.num_groups
  return RowCounting(
    num_groups, counts.records_out, row_counts.file_bytes(num_groups)
  )
