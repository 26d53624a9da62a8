"""FedFomo, local models, FedAvg and FedProx on MNIST with two classes each.

For `fedfish sweep`: 15 clients, all of which take part, 5 local epochs over 500
of their images, 20 rounds, as in FedFomo's paper but for the number of images.
All train on the same images, and are scored on the test images of their
classes. 8 runs of three minutes on two CPU cores.

The directory holds MNIST's four files, as their owners publish them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_avg', mu=0.01),
      client_work=dict(
        num_local_epochs=5,
        local_batch_size=50,
        max_sequences_per_client=500,
        learning_rate=0.01,
      ),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='lenet'),
      data=dict(corpus='mnist', directory='corpora/mnist'),
      partition=dict(
        scheme='pathological_shards', num_clients=15, shards_per_client=2
      ),
      cohorts=dict(cohort_size=None),
      client_splits=dict(held_out_fraction=None, validation_fraction=0.2),
      training=dict(num_rounds=20),
      evaluation=dict(
        every_num_rounds=5,
        num_clients=15,
        max_sequences_per_client=0,
        batch_size=500,
      ),
      checkpoints=dict(every_num_rounds=0),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  return ConfigDict(
    dict(
      grid={
        'algorithm.name': ['fed_fomo', 'local_only', 'fed_avg', 'fed_prox'],
        # The same seeds for all: pairs are compared.
        'seeds.model_seed,seeds.shuffle_seed,seeds.partition_seed': [
          (1, 1, 1),
          (2, 2, 2),
        ],
      },
      evaluate=[dict(client_split='own_test', fractions=[0.0])],
    ),
    allow_dotted_keys=True,
  )
