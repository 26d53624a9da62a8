"""FedFish, its mixes and FedAvg on Debian's text, by client learning rate.

For `fedfish sweep`: the tiny transformer at 4 local epochs and client learning
rates of 0.1 and 0.01; FedAvg, FedFish as printed, FedFish with the tensor of
the logits left to the plain mean, and the same with half of FedAvg's mean mixed
with the mean weighted by the root of the Fisher diagonal. The server's learning
rate is searched for each of them at the client rate of 0.1, on points a factor
of 2 apart. 24 runs and some 20 searches; some hours on two CPU cores.

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
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_power,algorithm.plain_mean_fraction,'
    'algorithm.plain_mean_tensors'
  )
  sizes = dict(max_clients=64, max_sequences_per_client=16)
  return dict(
    grid={
      arms: [
        ('fed_avg', 1.0, 0.0, 'none'),
        ('fed_fish', 1.0, 0.0, 'none'),
        ('fed_fish', 1.0, 0.0, 'logits'),
        ('fed_fish', 0.5, 0.5, 'logits'),
      ],
      'client_work.learning_rate': [0.1, 0.01],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [1e-3, 2e-3, 4e-3, 8e-3]},
      max_extensions=3,
      num_rounds=60,
      per=[arms],
      num_clients=64,
    ),
    evaluate=[
      dict(**sizes),
      dict(data='corpora/sotu_by_president', **sizes),
    ],
  )
