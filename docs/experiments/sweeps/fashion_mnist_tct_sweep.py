"""TCT and FedAvg on Fashion-MNIST where every client has two of ten classes.

For `fedfish sweep`: 41 rounds of each, as in `fashion_mnist_tct`, two seeds.
4 runs of 15 minutes on two CPU cores; some 3 GB of disk for each of TCT.

The directory holds Fashion-MNIST's four files, as their owner publishes them.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base('fashion_mnist_tct')


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sizes = dict(max_clients=None, max_sequences_per_client=None)
  return dict(
    grid={
      'algorithm.name': ['tct', 'fed_avg'],
      # The same seeds for both: pairs are compared.
      'seeds.model_seed,seeds.shuffle_seed,seeds.partition_seed': [
        (1, 1, 1),
        (2, 2, 2),
      ],
    },
    evaluate=[dict(fractions=[0.0], **sizes)],
  )
