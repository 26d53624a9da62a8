"""The runs of debian_one_model_sweep.py with Nesterov momentum at the server.

For `fedfish sweep`; that file says what is compared and expected. The server's
learning rate is searched for each arm, on points a factor of 2 apart.

18 runs and some 30 searches; an hour on two CPU cores.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'algorithm.fisher_power': 0.5,
      'checkpoints.every_num_rounds': 30,
      'checkpoints.keep_last': 1,
      'evaluation.every_num_rounds': 10,
      'evaluation.num_clients': 64,
      'server.learning_rate': 0.2,
      'server.momentum': 0.9,
      'server.nesterov': True,
      'server.optimizer': 'sgd',
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_estimator,algorithm.fisher_granularity,'
    'client_work.optimizer,client_work.learning_rate'
  )
  return dict(
    grid={
      arms: [
        ('fed_avg', 'extra_pass', 'element', 'sgd', 0.1),
        ('fed_avg', 'second_moment', 'element', 'adamw', 1e-3),
        ('fed_fish', 'second_moment', 'element', 'adamw', 1e-3),
        ('fed_fish', 'second_moment', 'output', 'adamw', 1e-3),
        ('fed_avg', 'extra_pass', 'element', 'sgd', 0.03),
        ('fed_fish', 'second_moment', 'output', 'adamw', 3e-4),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (6, 6, 6),
        (7, 7, 7),
        (8, 8, 8),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [0.1, 0.2, 0.4, 0.8]},
      max_extensions=4,
      num_rounds=60,
      per=[arms],
      num_clients=64,
    ),
    evaluate=[dict(fractions=[0], max_clients=64, max_sequences_per_client=16)],
  )
