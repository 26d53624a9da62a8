"""The arms of debian_regime_sweep.py at a tenth of its clients' learning rate.

For `fedfish sweep`: FedAvg, FedFish as printed, FedFish with the tensor of the
logits left to the plain mean, and the mix, at a client learning rate of 0.01
with the server's learning rates that were searched in debian_regime_sweep.py,
at the client rate of 0.1. 12 runs; half an hour on two CPU cores.

debian_sweep.py says how the corpora are made.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'checkpoints.every_num_rounds': 60,
      'checkpoints.keep_last': 1,
      'client_work.learning_rate': 0.01,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_power,algorithm.plain_mean_fraction,'
    'algorithm.plain_mean_tensors,server.learning_rate'
  )
  sizes = dict(max_clients=64, max_sequences_per_client=16)
  return dict(
    grid={
      arms: [
        ('fed_avg', 1.0, 0.0, 'none', 2e-3),
        ('fed_fish', 1.0, 0.0, 'none', 1e-3),
        ('fed_fish', 1.0, 0.0, 'logits', 2e-3),
        ('fed_fish', 0.5, 0.5, 'logits', 2e-3),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    evaluate=[
      dict(**sizes),
      dict(data='corpora/sotu_by_president', **sizes),
    ],
  )
