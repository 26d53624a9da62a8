"""Optimizers of clients and server on Debian's package descriptions.

For `fedfish sweep`: FedAvg with SGD and AdamW clients, Adam and Nesterov
momentum on the server, 3 x 3 learning rates each: 36 runs of 60 rounds, an hour
or two on two CPU cores. docs/experiments/other_methods.md has the results.
Clients are web hosts, on code hosts their owners:

  fedfish group c4 --key owner --output corpora/debian_by_owner \
      --input 'tff_fedfish/corpora/debian_descriptions/c4-train.*.json.gz'
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'algorithm.name': 'fed_avg',
      'checkpoints.every_num_rounds': 0,
      'checkpoints.keep_last': 0,
      'evaluation.every_num_rounds': 20,
      'evaluation.num_clients': 64,
      'training.num_rounds': 60,
    },
  )


def get_sweep() -> dict:
  """Returns the pairs of optimizers with their learning rates."""
  clients = [('sgd', 0.0, rate) for rate in (0.03, 0.1, 0.3)]
  clients += [('adamw', 0.1, rate) for rate in (3e-4, 1e-3, 3e-3)]
  servers = [('adam', 0.0, False, rate) for rate in (3e-4, 1e-3, 3e-3)]
  servers += [('sgd', 0.9, True, rate) for rate in (0.1, 0.3, 0.7)]
  settings = (
    'client_work.optimizer',
    'client_work.weight_decay',
    'client_work.learning_rate',
    'server.optimizer',
    'server.momentum',
    'server.nesterov',
    'server.learning_rate',
  )
  rows = [(*client, *server) for client in clients for server in servers]
  return dict(grid={','.join(settings): rows})
