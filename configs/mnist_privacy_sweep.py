"""FedFomo whose clients train by DP-SGD, at three noise multipliers.

For `fedfish sweep`: the clients of mnist_personal_sweep, gradients of single
images clipped to 1, batches drawn by Poisson sampling, 10 rounds; two
seeds. The rate of 0.1 makes the noise ten times that of 0.01. 6 runs of some
ten minutes on two CPU cores.

The directory holds MNIST's four files, as their owners publish them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fomo'),
      client_work=dict(
        num_local_epochs=5,
        local_batch_size=50,
        max_sequences_per_client=500,
        learning_rate=0.1,
      ),
      local_privacy=dict(clip_norm=1.0, sampling='poisson'),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='lenet'),
      data=dict(corpus='mnist', directory='corpora/mnist'),
      partition=dict(
        scheme='pathological_shards', num_clients=15, shards_per_client=2
      ),
      cohorts=dict(cohort_size=None),
      client_splits=dict(held_out_fraction=None),
      training=dict(num_rounds=10),
      evaluation=dict(
        every_num_rounds=1,
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
  seeds = (
    'seeds.model_seed,seeds.shuffle_seed,'
    'seeds.partition_seed,seeds.privacy_seed'
  )
  return ConfigDict(
    dict(
      grid={
        'local_privacy.noise_multiplier': [0.0, 1.0, 2.0],
        seeds: [(1, 1, 1, 1), (2, 2, 2, 2)],
      },
      evaluate=[dict(client_split='own_test', fractions=[0.0])],
    ),
    allow_dotted_keys=True,
  )
