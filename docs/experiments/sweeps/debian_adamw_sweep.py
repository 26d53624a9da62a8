"""AdamW clients on Debian's text, whose second moment is the Fisher diagonal.

For `fedfish sweep`: as debian_regime_sweep.py, with AdamW clients at 16 local
steps; FedAvg against FedFish with `fisher_estimator='second_moment'`, which
takes no pass over the data: p = 1, p = 1/2, and half of FedAvg's mean mixed in.
24 runs with Adam and with a Nesterov server and some 50 searches; an hour and a
half on two CPU cores.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'checkpoints.every_num_rounds': 30,
      'checkpoints.keep_last': 1,
      'client_work.learning_rate': 0.001,
      'client_work.max_sequences_per_client': None,
      'client_work.num_local_epochs': 1,
      'client_work.num_local_steps': 16,
      'client_work.optimizer': 'adamw',
      'evaluation.every_num_rounds': 15,
      'training.num_rounds': 60,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_estimator,algorithm.fisher_power,'
    'algorithm.plain_mean_fraction'
  )
  servers = 'server.optimizer,server.momentum,server.nesterov'
  return dict(
    grid={
      arms: [
        ('fed_avg', 'second_moment', 1.0, 0.0),
        ('fed_fish', 'second_moment', 1.0, 0.0),
        ('fed_fish', 'second_moment', 0.5, 0.0),
        ('fed_fish', 'second_moment', 0.5, 0.5),
      ],
      servers: [('adam', 0.0, False), ('sgd', 0.9, True)],
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [2e-3, 4e-3, 8e-3, 1.6e-2]},
      max_extensions=9,
      num_rounds=30,
      per=[arms, servers],
      num_clients=64,
    ),
    evaluate=[dict(max_clients=64, max_sequences_per_client=16)],
  )
