"""Inputs of clients from what they and others kept."""

import dataclasses
from collections.abc import Sequence

from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.run import candidates, kept_tensors
from tff_fedfish.run.client_states import ClientStates


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptInputs:
  """Client states, and what follows from them for the clients of a round."""

  config: TrainConfig
  slots: Sequence[tuple[str, kept_tensors.Specs]]
  """As `kept_tensors.slots_of` the process."""
  states: ClientStates
  participating: Sequence[bytes]
  """Clients that may take part, in their order."""

  def kept_of(
    self, client_id: bytes, round_num: int
  ) -> kept_tensors.KeptTensors:
    """Returns what a client kept before a round.

    Raises:
      UserError: If its file is damaged.
    """
    return kept_tensors.find(self.states, self.slots, client_id, round_num)

  def candidates_of(
    self, client_id: bytes, round_num: int
  ) -> candidates.Candidates | None:
    """Returns the models that a client is given; None: clients are given none.

    Raises:
      UserError: If a file is damaged.
    """
    personal = self.config.method.personal(self.config)
    if personal is None or personal.downloads is None:
      return None
    return candidates.find(
      self.states,
      personal.downloads,
      dict(self.slots),
      client_id,
      clients=self.participating,
      round_num=round_num,
      cohort_seed=self.config.seeds.cohort_seed,
    )
