"""FedFomo whose clients train by DP-SGD, at three noise multipliers.

For `fedfish sweep`: the clients of mnist_personal_sweep, gradients of single
images clipped to 1, batches drawn by Poisson sampling, 10 rounds; two
seeds. The rate of 0.1 makes the noise ten times that of 0.01. 6 runs of some
ten minutes on two CPU cores.

The directory holds MNIST's four files, as their owners publish them.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'mnist_personal',
    {
      'checkpoints.every_num_rounds': 0,
      'client_splits.validation_fraction': None,
      'client_work.learning_rate': 0.1,
      'evaluation.every_num_rounds': 1,
      'training.num_rounds': 10,
      'local_privacy.clip_norm': 1.0,
      'local_privacy.sampling': 'poisson',
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  seeds = (
    'seeds.model_seed,seeds.shuffle_seed,'
    'seeds.partition_seed,seeds.privacy_seed'
  )
  sizes = dict(max_clients=None, max_sequences_per_client=None)
  return dict(
    grid={
      'local_privacy.noise_multiplier': [0.0, 1.0, 2.0],
      seeds: [(1, 1, 1, 1), (2, 2, 2, 2)],
    },
    evaluate=[dict(client_split='own_test', fractions=[0.0], **sizes)],
  )
