"""Optimizers of clients and server on Debian's package descriptions.

For `fedfish sweep`: FedAvg with SGD and AdamW clients, Adam and Nesterov
momentum on the server, 3 x 3 learning rates each: 36 runs of 60 rounds, an hour
or two on two CPU cores. docs/experiments/optimizers.md has the results. Clients
are web hosts, on code hosts their owners:

  fedfish group c4 --key owner --output corpora/debian_by_owner \
      --input 'tff_fedfish/corpora/debian_descriptions/c4-train.*.json.gz'
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_avg'),
      client_work=dict(
        num_local_epochs=4,
        local_batch_size=4,
        max_sequences_per_client=8,
        learning_rate=0.1,
      ),
      server=dict(optimizer='adam', learning_rate=1e-3),
      model=dict(preset='tiny'),
      data=dict(
        directory='corpora/debian_by_owner',
        vocabulary='demo',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=8),
      training=dict(num_rounds=60),
      evaluation=dict(
        every_num_rounds=20, num_clients=64, max_sequences_per_client=16
      ),
      checkpoints=dict(every_num_rounds=0),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
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
  return ConfigDict(
    dict(grid={','.join(settings): rows}), allow_dotted_keys=True
  )
