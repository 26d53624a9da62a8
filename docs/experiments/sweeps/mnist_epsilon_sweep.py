"""The map of mnist_regime_sweep.py with Adam's epsilon at a tenth of it.

For `fedfish sweep`: FedAvg, FedFish as printed and their mix at 1 and 4 local
epochs, where a client learning rate of 0.001 leaves deltas near epsilon, with
`server.epsilon` at 1e-8 instead of 1e-7. The server's learning rate is searched
again, as there. 36 runs and some 24 searches, 1 to 2 minutes each on two cores.

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
      'server.epsilon': 1e-08,
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
      'client_work.num_local_epochs': [1, 4],
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
