"""The division of clients' rows into train, validation and test parts."""

import dataclasses
from collections.abc import Mapping, Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.divided_clients import DividedClients, shuffled_targets
from tff_fedfish.data.sequences import ClientRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Division:
  """Values only, as worker processes are sent them."""

  split_seed: int
  validation_fraction: float
  test_fraction: float
  has_twins: bool
  """Whether clients are tested on the rows of their twins."""
  shuffles_targets: bool

  @property
  def is_whole(self) -> bool:
    """Whether clients train on all of their rows."""
    return not self.validation_fraction and not self.test_fraction

  @property
  def has_tests(self) -> bool:
    """Whether clients have test rows."""
    return self.has_twins or self.test_fraction > 0

  def divide(
    self,
    rows: ClientRows,
    client_ids: Sequence[bytes],
    twins: Mapping[bytes, bytes] | None,
  ) -> DividedClients:
    """Returns the rows of clients, divided for those that take part.

    See `Corpus.twins` for the twins.
    """
    targets = None
    if self.shuffles_targets and len(client_ids) > 1:
      targets = shuffled_targets(client_ids, split_seed=self.split_seed)
    return DividedClients(
      rows,
      client_ids=client_ids,
      split_seed=self.split_seed,
      validation_fraction=self.validation_fraction,
      test_fraction=self.test_fraction,
      test_twins=twins if self.has_twins else None,
      target_of=targets,
    )


def division_of(config: TrainConfig) -> Division:
  """Returns the division of a config's participating clients."""
  validation, test = config.row_fractions
  return Division(
    split_seed=config.seeds.split_seed,
    validation_fraction=validation,
    test_fraction=test,
    has_twins=config.partition.has_twins,
    shuffles_targets=config.client_splits.shuffles_targets,
  )
