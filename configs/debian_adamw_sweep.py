"""AdamW clients on Debian's text, whose second moment is the Fisher diagonal.

For `fedfish sweep`: as debian_regime_sweep.py, with AdamW clients at 16 local
steps; FedAvg against FedFish with `fisher_estimator='second_moment'`, which
takes no pass over the data: p = 1, p = 1/2, and half of FedAvg's mean mixed in.
24 runs with Adam and with a Nesterov server and some 50 searches; an hour and a
half on two CPU cores.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fish'),
      client_work=dict(
        optimizer='adamw',
        num_local_epochs=1,
        num_local_steps=16,
        local_batch_size=4,
        max_sequences_per_client=None,
        learning_rate=1e-3,
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
        every_num_rounds=15, num_clients=24, max_sequences_per_client=16
      ),
      checkpoints=dict(every_num_rounds=30, keep_last=1),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_estimator,algorithm.fisher_power,'
    'algorithm.plain_mean_fraction'
  )
  servers = 'server.optimizer,server.momentum,server.nesterov'
  return ConfigDict(
    dict(
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
    ),
    allow_dotted_keys=True,
  )
