"""FedAvg; with a server optimizer other than SGD, FedOpt.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data"; Reddi et al. (2021), "Adaptive federated optimization".

  delta_i = theta_G - theta_i after E local epochs on client i
  g = sum_i w_i delta_i / sum_i w_i
  theta_G <- server optimizer step on g (SGD with rate 1 is FedAvg)
"""

import dataclasses

from tff_fedfish.methods.method import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
  """Weighted mean of the model deltas; FedOpt with a server optimizer."""

  # The process differs from `tff.learning`'s: it loops over local epochs itself
  # and weighs a client by the rows of one pass, hyperparameters of clients can
  # be set between rounds, and a round without information leaves the server as
  # it is.
  title = 'FedAvg'
  source = (
    'McMahan et al. (2017), "Communication-efficient learning of deep networks '
    'from decentralized data"; Reddi et al. (2021), "Adaptive federated '
    'optimization"'
  )
  hue, hatch = '#0072B2', '////'

  def quantized_extra_bytes(self, config):
    return 0
