"""FedAvg; with a server optimizer other than SGD, FedOpt."""

from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig

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
  builder='tff_fedfish.algorithms.fed_avg:build_fed_avg',
  hue='#0072B2',
  hatch='////',
)
