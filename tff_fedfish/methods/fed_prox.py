"""FedProx: local training that is held near the server's model."""

import dataclasses
from typing import Literal

from tff_fedfish.config_fields import number
from tff_fedfish.methods.method import ClientCost, Column, Method
from tff_fedfish.methods.settings import AlgorithmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedProxConfig(AlgorithmConfig):
  """Settings of FedProx: the strength of the proximal term."""

  mu: float = number(0.0, at_least=0)
  """Strength mu of the proximal term mu / 2 |theta - theta_G|^2, >= 0. 0 is
  FedAvg. With an adaptation it is the first round's."""
  adaptation: Literal['none', 'fl4health'] = 'none'
  """Rule by which mu follows the training loss. 'none': mu is constant.
  'fl4health': mu rises by `mu_step` when the loss rises, and falls by it after
  `patience` falls in a row. The first round and a tie count as falls."""
  mu_step: float = number(0.1, above=0)
  """Change of mu by an adaptation, > 0."""
  patience: int = number(5, at_least=1)
  """Falls of the loss in a row after which mu falls, >= 1. Unit: rounds."""


def _problems(config):
  rule = config.algorithm.adaptation
  if rule == 'none' or not config.local_privacy.is_on:
    return []
  return [
    "`config.algorithm.adaptation` must be 'none' with local_privacy, as it "
    f'reads training losses, which have no noise, found {rule!r}'
  ]


METHOD = Method(
  name='fed_prox',
  title='FedProx',
  summary=(
    'FedAvg whose clients minimize their loss plus a proximal term that holds '
    "them near the server's model."
  ),
  source=(
    'Li et al. (2020), "Federated optimization in heterogeneous networks"'
  ),
  settings=FedProxConfig,
  builder='tff_fedfish.algorithms.fed_prox:build_fed_prox',
  # The corrected gradients.
  cost=lambda config: ClientCost(models_in_training=1),
  columns=lambda config: (
    (Column('train/mu', ('client_work', 'mu')),)
    if config.algorithm.adaptation != 'none'
    else ()
  ),
  problems=_problems,
  hue='#CC79A7',
  hatch='xxxx',
)
