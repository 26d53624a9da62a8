"""The runs of debian_coarse_sweep.py with a server of plain SGD.

For `fedfish sweep`: the length of the mean is the length of the step. The
server's learning rate is searched for each arm, on points a factor of 2 apart.
25 runs and some 30 searches.

Expected, as differences from FedAvg in held-out loss after 120 rounds, in nats:

- per element -0.4 to +0.1: the mean is longer than FedAvg's, and the largest
  rate may decide (simulated: -0.43 at a grid that ended too early);
- per input unit -0.06 to +0.02 (simulated: -0.06), as its mean is a little
  longer;
- power 1/2 and mix 1/2: -0.02 to +0.02 (simulated: -0.003).
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
      'server.learning_rate': 1.0,
      'server.optimizer': 'sgd',
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_granularity,algorithm.fisher_power,'
    'algorithm.fisher_mix,algorithm.plain_mean_tensors'
  )
  return dict(
    grid={
      arms: [
        ('fed_avg', 'element', 1.0, None, 'none'),
        ('fed_fish', 'element', 1.0, None, 'none'),
        ('fed_fish', 'input', 1.0, None, 'none'),
        ('fed_fish', 'input', 0.5, 0.5, 'none'),
        ('fed_fish', 'input', 0.5, 0.5, 'logits'),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
        (4, 4, 4),
        (5, 5, 5),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [1.0, 2.0, 4.0, 8.0]},
      max_extensions=6,
      num_rounds=60,
      per=[arms],
      num_clients=64,
    ),
    evaluate=[dict(fractions=[0], max_clients=64, max_sequences_per_client=16)],
  )
