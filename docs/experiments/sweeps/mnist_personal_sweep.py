"""FedFomo, local models, FedAvg and FedProx on MNIST with two classes each.

For `fedfish sweep`: 15 clients, all of which take part, 5 local epochs over 500
of their images, 20 rounds, as in FedFomo's paper but for the number of images.
All train on the same images, and are scored on the test images of their
classes. 8 runs of three minutes on two CPU cores.

The directory holds MNIST's four files, as their owners publish them.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'mnist_personal',
    {
      'algorithm.name': 'fed_avg',
      'algorithm.mu': 0.01,
      'checkpoints.every_num_rounds': 0,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sizes = dict(max_clients=None, max_sequences_per_client=None)
  return dict(
    grid={
      'algorithm.name': ['fed_fomo', 'local_only', 'fed_avg', 'fed_prox'],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.shuffle_seed,seeds.partition_seed': [
        (1, 1, 1),
        (2, 2, 2),
      ],
    },
    evaluate=[dict(client_split='own_test', fractions=[0.0], **sizes)],
  )
