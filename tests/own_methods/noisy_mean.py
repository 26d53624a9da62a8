"""A method of one's own whose clients take more, and who add noise themselves.

Only its declaration is of use: it is planned and described, and never trained.
"""

import dataclasses
from typing import Literal

from tff_fedfish.methods import (
  AlgorithmConfig,
  ClientCost,
  Method,
  Traffic,
  number,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyMeanConfig(AlgorithmConfig):
  """Settings of the noisy mean."""

  noise_multiplier: float = number(0.5, at_least=0)
  """Standard deviation of the noise, over the norm 1 of a clipped delta."""
  noise_pass: Literal['none', 'batches', 'rows'] = 'batches'
  """Gradients computed after training."""


def _privacy(config):
  multiplier = config.algorithm.noise_multiplier
  if not multiplier:
    return None
  return (
    'Clients clipped their deltas to the norm 1 and added {Gaussian} noise '
    f'with the multiplier {multiplier:g}.'
  )


METHOD = Method(
  name='noisy_mean',
  title='Noisy mean',
  summary='Mean of deltas with noise.',
  source='None.',
  settings=NoisyMeanConfig,
  builder='own_methods.noisy_mean:none',
  traffic=lambda config: Traffic(uplink=1.5, downlink=3),
  cost=lambda config: ClientCost(
    models_summed=2,
    models_in_training=2,
    models_after_training=2,
    pass_after_training=config.algorithm.noise_pass,
    flops_per_weight=5,
  ),
  sends='noisy deltas and their squares',
  privacy=_privacy,
)
