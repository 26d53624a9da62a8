"""A method of one's own: FedAvg whose clients keep the model they trained."""

import dataclasses

from tff_fedfish.methods import KeptSlot, Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptModel(Method):
  """FedAvg whose clients keep the model they trained."""

  title, source = 'Kept model', 'This test.'

  def kept(self, num_clients):
    return {
      'last_model': KeptSlot(
        initial=lambda trainable: trainable,
        next=lambda client: client.local.trainable,
      )
    }
