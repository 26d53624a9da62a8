"""FedFish and FedAvg by local epochs on MNIST by writer.

For `fedfish sweep`: the model and the caps of mnist_by_writer.py with smaller
cohorts, fewer rounds and larger steps of the clients, at 1, 4, 8 and 16 local
epochs for the same number of rounds, three seeds each: 24 runs, after 6 short
ones at 4 local epochs that choose the server's learning rate for each method.
Every run is evaluated on the writers whom the corpus holds out; learning rates
are chosen on others. Some 80 minutes on two CPU cores.
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
      'training.num_rounds': 20,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sizes = dict(max_clients=None, max_sequences_per_client=None)
  return dict(
    grid={
      'algorithm.name': ['fed_avg', 'fed_fish'],
      'client_work.num_local_epochs': [1, 4, 8, 16],
      'client_work.learning_rate': [1e-2],
      # The same seeds for both methods: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    budget='fixed_rounds',
    learning_rate_search=dict(
      settings={'server.learning_rate': [1e-3, 1e-2, 1e-1]},
      num_rounds=20,
      per=['algorithm.name', 'client_work.learning_rate'],
      num_clients=0,
    ),
    evaluate=[
      dict(
        fractions=[0.0, 0.25, 0.5],
        # As Dhawan et al. (2024) fine-tune on EMNIST.
        personalization_epochs=1,
        barrier=True,
        **sizes,
      ),
    ],
  )
