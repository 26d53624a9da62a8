"""SCAFFOLD: control variates take the drift out of local steps."""

from tff_fedfish.methods.method import ClientCost, Method, Slot, Traffic
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike

_PLAIN_SGD = (
  ('client_work.optimizer', 'sgd'),
  ('client_work.momentum', 0.0),
  ('client_work.max_gradient_norm', None),
  ('client_work.keeps_optimizer_state', False),
  ('client_work.max_delta_norm', None),
)

METHOD = Method(
  name='scaffold',
  title='SCAFFOLD',
  summary=(
    'FedAvg whose clients correct every gradient by the difference between '
    "their own mean gradient and that of all clients. Clients keep a model's "
    'worth of state.'
  ),
  source=(
    'Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for '
    'federated learning"'
  ),
  settings=AlgorithmConfig,
  builder='tff_fedfish.algorithms.scaffold:build_scaffold',
  traffic=lambda config: Traffic(2, 2),
  # The correction, the corrected gradients and the server's variate.
  cost=lambda config: ClientCost(
    models_summed=2, models_in_training=3, flops_per_weight=10
  ),
  slots=lambda config: (Slot('control_variate', 1),),
  takes_num_clients=True,
  problems=lambda config: settings_unlike(
    config, _PLAIN_SGD, "with algorithm.name 'scaffold'"
  ),
  sends='weighted model deltas and changes of control variates',
  hue='#56B4E9',
  hatch='++++',
)
