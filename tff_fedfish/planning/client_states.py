"""Disk that the tensors of clients take, computed before a run is started."""

import dataclasses
import os

from models.model_shapes import num_parameters
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.data.manifest import read_manifest
from tff_fedfish.errors import UserError
from tff_fedfish.printing import format_bytes

_BYTES = {'float32': 4, 'bfloat16': 2}


@dataclasses.dataclass(frozen=True)
class StatesOnDisk:
  """Size of the client states of a run at its end."""

  num_clients: float
  """Clients that have taken part: expected, or at most where `is_bound`."""
  is_bound: bool
  """Whether the number of clients that may take part is not known."""
  client_bytes: int
  """Size of one client's state, without names of tensors."""
  total_bytes: int
  """Size of all, those of two more rounds included: one is written while the
  one before has not been superseded."""

  def __str__(self) -> str:
    about = 'at most' if self.is_bound else 'about'
    return (
      f'{about} {format_bytes(self.total_bytes)}, {self.num_clients:,.0f} '
      f'clients of {format_bytes(self.client_bytes)} and two rounds'
    )


def states_on_disk(
  config: TrainConfig, num_clients: int | None = None
) -> StatesOnDisk | None:
  """Returns the size of a run's client states.

  After R rounds of cohorts of C out of K clients, K (1 - (1 - C / K)^R) are
  expected to have taken part.

  Args:
    config: The run's.
    num_clients: K. None: see `clients_of_corpus`; where that knows none, R C
      bounds them.

  Returns:
    The size; None if clients keep nothing.
  """
  if not config.kept_slots:
    return None
  num_models = sum(slot.num_models for slot in config.kept_slots)
  num_scalars = num_models * num_parameters(config.model_shape())
  client_bytes = int(num_scalars * _BYTES[config.client_states.dtype])
  if num_clients is None:
    num_clients = clients_of_corpus(config)
  cohort_size, num_rounds = config.cohort_size, config.training.num_rounds
  if cohort_size is None:
    cohort_size = num_clients or 1
  taking_part = float(num_rounds * cohort_size)
  if num_clients:
    absent = (1 - min(cohort_size / num_clients, 1)) ** num_rounds
    taking_part = num_clients * (1 - absent)
  return StatesOnDisk(
    num_clients=taking_part,
    is_bound=not num_clients,
    client_bytes=client_bytes,
    total_bytes=int((taking_part + 2 * cohort_size) * client_bytes),
  )


def clients_of_corpus(config: TrainConfig) -> int | None:
  """Returns how many clients may take part; None if that is not known yet."""
  if config.partition.num_clients is not None:
    return config.partition.num_clients
  if config.data.holds_images or not os.path.isdir(config.data.directory):
    return None
  try:
    num_groups = read_manifest(config.data.directory).counts.num_groups
  except UserError:
    return None
  held_out = config.client_splits.held_out_fraction or 0.0
  return max(round(num_groups * (1 - held_out)), 1)
