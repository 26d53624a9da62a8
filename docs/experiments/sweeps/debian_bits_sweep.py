"""Deltas of 8 and 4 bits on Debian's text.

For `fedfish sweep`: FedAvg, and FedFish per input unit with power 1/2 and mix
1/2, at the server's learning rate that debian_coarse_sweep.py found for both;
its runs of the same seeds are those at 32 bits. Three seeds; 12 runs.

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
      'server.learning_rate': 2e-3,
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
      'aggregation.bits': [8, 4],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    evaluate=[dict(fractions=[0], max_clients=64, max_sequences_per_client=16)],
  )
