"""Inputs of clients from what they and others kept."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.run import candidates, kept_tensors
from tff_fedfish.run.client_states import ClientStates


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptInputs:
  """Client states, and what follows from them for the clients of a round."""

  config: TrainConfig
  process: Any
  """Its learning process."""
  states: ClientStates
  participating: Sequence[bytes]
  """Clients that may take part, in their order."""

  @functools.cached_property
  def slots(self) -> tuple[tuple[str, kept_tensors.Specs], ...]:
    """Slots of the process; see `kept_tensors.slots_of`."""
    return kept_tensors.slots_of(self.process)

  def inputs_of(self, client_id: bytes, round_num: int) -> dict[str, Any]:
    """Returns a `TrainingClient`'s `kept`, and `candidates` if it is given any.

    Raises:
      UserError: If a file is damaged.
    """
    kept = kept_tensors.find(self.states, self.slots, client_id, round_num)
    personal = self.config.method.personal(self.config)
    if personal is None or personal.downloads is None:
      return {'kept': kept}
    found = candidates.find(
      self.states,
      personal.downloads,
      dict(self.slots),
      client_id,
      clients=self.participating,
      round_num=round_num,
      cohort_seed=self.config.seeds.cohort_seed,
    )
    return {'kept': kept, 'candidates': found}
