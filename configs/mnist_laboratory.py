"""One round of FedFish and its controls with the EMNIST CNN on MNIST by writer.

For `fedfish laboratory`: cohorts of 8 writers train the initial model for 16
and then 64 local epochs, at three client learning rates. Every mean of their
models is scored on other writers after its best step. Is the Fisher diagonal
worth more than another client's? Five seeds: 15 cohorts, some 40 minutes on two
CPU cores. `cohort_sizes=[8, 32]` adds larger cohorts.

The files are those of mnist_by_writer.py.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the settings of the clients; docs/settings.md lists them all."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fish'),
      client_work=dict(
        num_local_epochs=16,
        local_batch_size=10,
        max_sequences_per_client=100,
        learning_rate=1e-2,
      ),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='emnist_cnn'),
      data=dict(corpus='mnist_by_writer', directory='corpora/mnist_by_writer'),
      cohorts=dict(cohort_size=8),
      client_splits=dict(held_out_fraction=None),
      training=dict(num_rounds=1),
      evaluation=dict(every_num_rounds=0, num_clients=0, batch_size=64),
      checkpoints=dict(every_num_rounds=0),
    )
  )
  return config.lock()


def get_laboratory() -> ConfigDict:
  """Returns what varies; docs/laboratory.md lists it all."""
  return ConfigDict(
    dict(
      grid={
        'client_work.learning_rate': [1e-3, 1e-2, 1e-1],
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
          (seed, seed, seed) for seed in range(1, 6)
        ],
      },
      local_epochs=[16, 64],
      cohort_sizes=[8],
      num_validation_clients=32,
      num_scored_clients=96,
      max_sequences_per_client=20,
    ),
    allow_dotted_keys=True,
  )
