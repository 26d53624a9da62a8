"""MOON: local training that contrasts representations."""

import dataclasses

from tff_fedfish.config_fields import number
from tff_fedfish.methods.method import ClientCost, Method, Slot
from tff_fedfish.methods.settings import AlgorithmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoonConfig(AlgorithmConfig):
  """Settings of MOON: its contrastive loss."""

  mu: float = number(1.0, at_least=0)
  """Weight of the contrastive loss, >= 0. 0 is FedAvg."""
  temperature: float = number(0.5, above=0)
  """Temperature tau of the contrastive loss, > 0."""


METHOD = Method(
  name='moon',
  title='MOON',
  summary=(
    "FedAvg whose clients draw their representation towards the server's and "
    'away from that of their own last model, which they keep.'
  ),
  source=('Li, He and Song (2021), "Model-contrastive federated learning"'),
  settings=MoonConfig,
  builder='tff_fedfish.algorithms.moon:build_moon',
  # z forward and back, z_glob and z_prev forward.
  cost=lambda config: ClientCost(extra_forwards=3, extra_backwards=1),
  slots=lambda config: (Slot('previous_model', 1),),
  hue='#E69F00',
  hatch='oooo',
)
