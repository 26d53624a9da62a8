"""One round of FedFish and its controls on Debian's package descriptions.

For `fedfish laboratory`: as mnist_laboratory.py, with the tiny transformer and
the clients of debian_sweep.py, which says how the corpus is made. Start it from
a trained model, too: `--checkpoint`. Three seeds: 9 cohorts.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the settings of the clients; docs/settings.md lists them all."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fish'),
      client_work=dict(
        num_local_epochs=16,
        local_batch_size=4,
        max_sequences_per_client=8,
        learning_rate=0.1,
      ),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='tiny'),
      data=dict(
        directory='corpora/debian_by_owner',
        vocabulary='tff_fedfish/corpora/demo_vocabulary',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=8),
      training=dict(num_rounds=1),
      evaluation=dict(every_num_rounds=0, num_clients=0, batch_size=16),
      checkpoints=dict(every_num_rounds=0),
    )
  )
  return config.lock()


def get_laboratory() -> ConfigDict:
  """Returns what varies; docs/laboratory.md lists it all."""
  return ConfigDict(
    dict(
      grid={
        'client_work.learning_rate': [1e-2, 1e-1, 1.0],
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
          (seed, seed, seed) for seed in range(1, 4)
        ],
      },
      local_epochs=[4, 16],
      cohort_sizes=[8],
      num_validation_clients=24,
      num_scored_clients=64,
      max_sequences_per_client=8,
    ),
    allow_dotted_keys=True,
  )
