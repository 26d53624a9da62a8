"""A method of one's own whose clients take more, and who add noise themselves.

Only its declaration is of use: it is planned and described, and never trained.
"""

import dataclasses

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

  num_passes: int = number(1, at_least=0)
  """Passes over a client's rows after training."""


METHOD = Method(
  name='noisy_mean',
  title='Noisy mean',
  summary='Mean of deltas with noise.',
  source='None.',
  settings=NoisyMeanConfig,
  builder='own_methods.noisy_mean:none',
  traffic=lambda config: Traffic(uplink=1.5, downlink=3),
  cost=lambda config: ClientCost(
    models_held=2, passes_after_training=config.algorithm.num_passes
  ),
)
