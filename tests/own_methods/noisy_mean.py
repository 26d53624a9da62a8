"""A method of one's own whose clients take more, and who add noise themselves.

Only its declaration is of use: it is planned and described, and never trained.
"""

import dataclasses

from tff_fedfish.methods import ClientCost, Method, Traffic, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyMean(Method):
  """Mean of deltas with noise."""

  title, source = 'Noisy mean', 'None.'

  num_passes: int = number(1, at_least=0)
  """Passes over a client's rows after training."""

  def traffic(self, config):
    return Traffic(uplink=1.5, downlink=3)

  def cost(self, config):
    return ClientCost(models_held=2, passes_after_training=self.num_passes)
