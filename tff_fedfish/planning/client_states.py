"""Disk that the tensors of clients take, computed before a run is started."""

import dataclasses

from models.model_shapes import num_parameters
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data import token_store
from tff_fedfish.data.places import StoreError
from tff_fedfish.errors import UserError
from tff_fedfish.printing import format_bytes

_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class StatesOnDisk:
  """Expected size of the client states of a run."""

  client_bytes: int
  """Size of one client's state, without the names of its tensors."""
  num_clients: float | None
  """Clients that have taken part at the end; None, as the next two: how many
  clients may take part is not known."""
  end_bytes: int | None
  """Size at the end: of these, and of what the checkpoint before needs."""
  peak_bytes: int | None
  """Size before a checkpoint: of what two earlier ones need, too."""

  def __str__(self) -> str:
    client = format_bytes(self.client_bytes)
    if self.num_clients is None:
      return f'{client} for each client that has taken part'
    return (
      f'about {format_bytes(self.end_bytes)} at the end, '
      f'{format_bytes(self.peak_bytes)} at most on the way; '
      f'{self.num_clients:,.0f} clients of {client}'
    )


def states_on_disk(
  config: TrainConfig, num_clients: int | None = None
) -> StatesOnDisk | None:
  """Returns the size of a run's client states.

  Of K clients, random cohorts of C reach K (1 - (1 - C / K)^r) in r rounds. A
  client that was reached before a checkpoint and comes again after it has two
  states until the second checkpoint from there is on disk. Without
  `num_clients`, K is that of the corpus. None if clients keep nothing.
  """
  if not config.kept_slots:
    return None
  num_models = sum(slot.num_models for slot in config.kept_slots)
  num_scalars = num_models * num_parameters(config.model_shape())
  client_bytes = int(num_scalars * _FLOAT_BYTES)
  if num_clients is None:
    num_clients = clients_of_corpus(config)
  if num_clients is None:
    return StatesOnDisk(client_bytes, None, None, None)
  cohort_size = min(config.cohort_size or num_clients, num_clients)
  num_rounds = config.training.num_rounds
  every = config.checkpoints.every_num_rounds or num_rounds

  def share_reached(num_rounds):
    return 1 - (1 - cohort_size / num_clients) ** num_rounds

  # Round of the last checkpoint but one, and rounds between two.
  before = (num_rounds - 1) // every * every
  again = share_reached(before) * share_reached(num_rounds - before)
  earlier = share_reached(max(before - every, 0)) * share_reached(every)
  taking_part = num_clients * share_reached(num_rounds)
  at_end = taking_part + num_clients * again
  # The cohort's states are written before what they supersede goes.
  at_peak = at_end + num_clients * earlier + cohort_size
  return StatesOnDisk(
    client_bytes,
    taking_part,
    int(at_end * client_bytes),
    int(at_peak * client_bytes),
  )


def clients_of_corpus(config: TrainConfig) -> int | None:
  """Returns how many clients may take part; None if that is not known."""
  if config.partition.num_clients is not None:
    return config.partition.num_clients
  if config.data.holds_images:
    return None
  try:
    manifest = token_store.manifest_of(config.data.directory)
  except (UserError, StoreError):
    return None
  held_out = config.client_splits.held_out_fraction or 0.0
  return max(round(manifest.counts.num_groups * (1 - held_out)), 1)
