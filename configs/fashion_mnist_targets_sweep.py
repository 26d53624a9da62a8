"""FedFomo where clients are scored on another distribution than they train on.

For `fedfish sweep`: Fashion-MNIST in five clusters of its pixels, three clients
with images of each. Validation and test images are permuted among the clients.
5 local epochs over 500 of their images, 20 rounds. 6 runs of three minutes
on two CPU cores.

The directory holds Fashion-MNIST's four files, as their owner publishes them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_avg'),
      client_work=dict(
        num_local_epochs=5,
        local_batch_size=50,
        max_sequences_per_client=500,
        learning_rate=0.01,
      ),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='lenet'),
      data=dict(corpus='fashion_mnist', directory='corpora/fashion_mnist'),
      partition=dict(
        scheme='latent_distributions',
        num_clients=15,
        clusters='pixels',
        num_clusters=5,
      ),
      cohorts=dict(cohort_size=None),
      client_splits=dict(
        held_out_fraction=None, validation_fraction=0.2, shuffles_targets=True
      ),
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
        'algorithm.name': ['fed_fomo', 'local_only', 'fed_avg'],
        # Another seed is another permutation of the targets.
        'seeds.model_seed,seeds.shuffle_seed,seeds.split_seed': [
          (1, 1, 1),
          (2, 2, 2),
        ],
      },
      evaluate=[dict(client_split='own_test', fractions=[0.0])],
    ),
    allow_dotted_keys=True,
  )
