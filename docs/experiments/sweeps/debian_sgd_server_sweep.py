"""FedFish, its mixes and FedAvg on Debian's text with a server of plain SGD.

For `fedfish sweep`: as debian_regime_sweep.py, with two seeds and a server
without momentum or a second moment, so that the length of the mean is the
length of the step. The server's learning rate is searched for each method at
the client rate of 0.01, on points a factor of 2 apart. 16 runs and some 20
searches.

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
      'server.learning_rate': 1.0,
      'server.optimizer': 'sgd',
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
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [1.0, 2.0, 4.0, 8.0]},
      max_extensions=6,
      num_rounds=60,
      per=[arms],
      num_clients=64,
    ),
    evaluate=[
      dict(**sizes),
      dict(data='corpora/sotu_by_president', **sizes),
    ],
  )
