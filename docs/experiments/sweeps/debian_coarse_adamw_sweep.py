"""AdamW clients, whose second moment is the Fisher diagonal, by unit.

For `fedfish sweep`: as debian_coarse_sweep.py, with AdamW clients at 0.001 and
three seeds; FedAvg against FedFish with `fisher_estimator='second_moment'`,
which takes no pass over the data, and the root: of elements, and of input
units. 9 runs and some 12 searches.

Expected, as differences from FedAvg in held-out loss after 120 rounds, in nats:
elements +0.02 to +0.15; input units 0 to +0.05. The root of v is what AdamW
divided by, so that clients move alike where they differ in it; without the mix
a client with large gradients still has most of the mass.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'checkpoints.every_num_rounds': 30,
      'checkpoints.keep_last': 1,
      'evaluation.every_num_rounds': 10,
      'evaluation.num_clients': 64,
      'algorithm.fisher_estimator': 'second_moment',
      'client_work.learning_rate': 0.001,
      'client_work.optimizer': 'adamw',
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_granularity,algorithm.fisher_power,'
    'algorithm.fisher_mix'
  )
  return dict(
    grid={
      arms: [
        ('fed_avg', 'element', 0.5, None),
        ('fed_fish', 'element', 0.5, None),
        ('fed_fish', 'input', 0.5, None),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [1e-3, 2e-3, 4e-3, 8e-3]},
      max_extensions=4,
      num_rounds=60,
      per=[arms],
      num_clients=64,
    ),
    evaluate=[dict(fractions=[0], max_clients=64, max_sequences_per_client=16)],
  )
