"""FedAvg; with a server optimizer other than SGD, FedOpt.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data"; Reddi et al. (2021), "Adaptive federated optimization".

  delta_i = theta_G - theta_i after E local epochs on client i
  g = sum_i w_i delta_i / sum_i w_i
  theta_G <- server optimizer step on g (SGD with rate 1 is FedAvg)
"""

from typing import Any

from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig


def build_fed_avg(model: Any, **training: Any) -> Any:
  """Builds FedAvg.

  It differs from `tff.learning.algorithms.build_weighted_fed_avg`: the process
  loops over local epochs itself and weighs a client by the rows of one pass,
  hyperparameters of clients can be set between rounds, and a round without
  information leaves the server as it is.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    **training: Optimizers, numbers of steps and further keywords of
      `rounds.compose.compose`.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.
  """
  from tff_fedfish.rounds.compose import compose

  return compose(
    model, make_update=lambda client: client.model_delta(), **training
  )


METHOD = Method(
  name='fed_avg',
  title='FedAvg',
  summary='Weighted mean of the model deltas; FedOpt with a server optimizer.',
  source=(
    'McMahan et al. (2017), "Communication-efficient learning of deep networks '
    'from decentralized data"; Reddi et al. (2021), "Adaptive federated '
    'optimization"'
  ),
  settings=AlgorithmConfig,
  builder='tff_fedfish.methods.fed_avg:build_fed_avg',
  bytes_beside_delta=lambda config: 0,
  hue='#0072B2',
  hatch='////',
)
