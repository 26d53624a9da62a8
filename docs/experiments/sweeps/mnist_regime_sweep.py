"""FedFish and FedAvg on MNIST by writer, by client learning rate and epochs.

For `fedfish sweep`: the EMNIST CNN at 1, 4 and 16 local epochs and at client
learning rates of 0.001, as in Dhawan et al. (2024), and 0.01; FedAvg, FedFish
as printed, and half of FedAvg's mean mixed with the mean weighted by the root
of the Fisher diagonal. The server's learning rate is searched for each of them
and each number of local epochs at the rate of 0.001, on points a factor of 2
apart. 54 runs and some 36 searches; a run takes 1 to 6 minutes on two cores.

The files are those of mnist_by_writer.py.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'mnist_by_writer',
    {
      'checkpoints.every_num_rounds': 10,
      'checkpoints.keep_last': 1,
      'cohorts.cohort_size': 8,
      'evaluation.every_num_rounds': 5,
      'evaluation.max_sequences_per_client': 40,
      'server.learning_rate': 0.01,
      'training.num_rounds': 20,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = 'algorithm.name,algorithm.fisher_power,algorithm.plain_mean_fraction'
  sizes = dict(max_clients=None, max_sequences_per_client=None)
  return dict(
    grid={
      arms: [
        ('fed_avg', 1.0, 0.0),
        ('fed_fish', 1.0, 0.0),
        ('fed_fish', 0.5, 0.5),
      ],
      'client_work.num_local_epochs': [1, 4, 16],
      'client_work.learning_rate': [1e-3, 1e-2],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [2.5e-3, 5e-3, 1e-2, 2e-2]},
      max_extensions=3,
      num_rounds=10,
      per=[arms, 'client_work.num_local_epochs'],
      num_clients=64,
    ),
    evaluate=[
      # As Dhawan et al. (2024) fine-tune on EMNIST.
      dict(fractions=[0.0, 0.25, 0.5], personalization_epochs=1, **sizes),
    ],
  )
