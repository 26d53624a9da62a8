"""TCT and FedAvg on Fashion-MNIST where every client has two of ten classes.

For `fedfish sweep`: 41 rounds of each, as in `fashion_mnist_tct`, two seeds.
4 runs of 15 minutes on two CPU cores; some 3 GB of disk for each of TCT.

The directory holds Fashion-MNIST's four files, as their owner publishes them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='tct', num_bootstrap_rounds=20),
      client_work=dict(
        num_local_epochs=5,
        local_batch_size=64,
        max_sequences_per_client=3000,
        learning_rate=0.05,
      ),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='lenet'),
      data=dict(corpus='fashion_mnist', directory='corpora/fashion_mnist'),
      partition=dict(
        scheme='fixed_classes', num_clients=10, classes_per_client=2
      ),
      cohorts=dict(cohort_size=None),
      client_splits=dict(held_out_fraction=None),
      training=dict(num_rounds=41),
      evaluation=dict(
        every_num_rounds=10,
        num_clients=10,
        max_sequences_per_client=0,
        batch_size=250,
      ),
      checkpoints=dict(every_num_rounds=10, keep_last=2),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  return ConfigDict(
    dict(
      grid={
        'algorithm.name': ['tct', 'fed_avg'],
        # The same seeds for both: pairs are compared.
        'seeds.model_seed,seeds.shuffle_seed,seeds.partition_seed': [
          (1, 1, 1),
          (2, 2, 2),
        ],
      },
      evaluate=[dict(fractions=[0.0])],
    ),
    allow_dotted_keys=True,
  )
