"""Deltas of 32, 8 and 4 bits on Debian's text.

For `fedfish sweep`: FedAvg, and FedFish per input unit with power 1/2 and mix
1/2, as in debian_coarse_sweep.py, at three numbers of bits. The server's
learning rate is searched at 32 bits: it is the one of that sweep. Three seeds;
18 runs and some 10 searches.

Expected, as differences from 32 bits of the same method and seed in held-out
loss after 120 rounds, in nats: 8 bits within 0.005, 4 bits within 0.02. The
rounding has a mean of 0; a value is off by at most 1/7 of the largest in its
row, and means over clients and, in Adam, over rounds take most of it away. At
equal uplink bytes 4 bits are ahead of 32 by more than 0.2, as they have seven
times the rounds; the downlink is float32.
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
        ('fed_avg', 'element', 1.0, None),
        ('fed_fish', 'input', 0.5, 0.5),
      ],
      'aggregation.bits': [32, 8, 4],
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
