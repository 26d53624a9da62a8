"""A possible reason of FedFish's scores on Debian's descriptions, tried.

For `fedfish sweep`: the runs of debian_sweep.py at 4 local epochs and 120
rounds, with the server's learning rate that its search chooses for both
methods. Beside them FedAvg with cohorts of 3 clients, about as many as
FedFish's mean over 8 is worth, and FedFish with squares of every sequence's
gradient, of which a client has more than batches. Four runs of one seed, some 7
minutes on two CPU cores.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'checkpoints.keep_every_num_rounds': 60,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  return dict(
    grid={
      'algorithm.name,algorithm.fisher_estimator,cohorts.cohort_size': [
        ('fed_avg', 'extra_pass', 8),
        ('fed_avg', 'extra_pass', 3),
        ('fed_fish', 'extra_pass', 8),
        ('fed_fish', 'example_sq', 8),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [(1, 1, 1)],
    },
    evaluate=[dict(barrier=True, max_clients=64, max_sequences_per_client=16)],
  )
