"""Controls of debian_coarse_adamw_sweep.py: rates, server, kinds of F.

For `fedfish sweep`, one change at a time to the runs of that file with seed 1,
60 rounds instead of 120. After 60 rounds FedFish of elements is there 0.38 nats
ahead of FedAvg, where 0.02 to 0.15 behind was expected:

- clients' rates of 0.0003 and 0.003, each with two rates of the server: that
  lead could be FedAvg's rate;
- a server with Nesterov momentum, which is better than Adam with AdamW clients
  (docs/experiments/optimizers.md), at three rates;
- FedFish with the power of 1, and with the gradients of an extra pass.

Expected, in nats minus FedAvg's, each at its better rate of the server: at both
rates of the clients -0.2 to -0.5; with Nesterov momentum -0.1 to -0.4; power 1
and the extra pass within 0.1 of the root of the second moment. AdamW divides by
the root of v, so that a rare token moves a coordinate as far as a frequent one;
the same root as a weight multiplies by it again, and what is summed is close to
the gradients' own mean, of which SGD clients send theirs.

16 runs; 15 minutes on two CPU cores. debian_sweep.py says how the corpora are
made.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'debian_sweep',
    {
      'checkpoints.every_num_rounds': 30,
      'checkpoints.keep_last': 1,
      'client_work.optimizer': 'adamw',
      'evaluation.every_num_rounds': 10,
      'evaluation.num_clients': 64,
      'seeds.cohort_seed': 1,
      'seeds.model_seed': 1,
      'seeds.shuffle_seed': 1,
      'training.num_rounds': 60,
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  settings = (
    'algorithm.name,algorithm.fisher_estimator,algorithm.fisher_power,'
    'client_work.learning_rate,'
    'server.optimizer,server.momentum,server.nesterov,server.learning_rate'
  )
  methods = [
    ('fed_avg', 'second_moment', 0.5),
    ('fed_fish', 'second_moment', 0.5),
  ]
  rates = [
    (client, 'adam', 0.0, False, server)
    for client in (3e-4, 3e-3)
    for server in (2e-3, 4e-3)
  ]
  rates += [(1e-3, 'sgd', 0.9, True, server) for server in (0.1, 0.3, 0.7)]
  adam = (1e-3, 'adam', 0.0, False, 2e-3)
  return dict(
    grid={
      settings: [
        *((*method, *rate) for rate in rates for method in methods),
        ('fed_fish', 'second_moment', 1.0, *adam),
        ('fed_fish', 'extra_pass', 0.5, *adam),
      ],
    },
    evaluate=[dict(fractions=[0], max_clients=64, max_sequences_per_client=16)],
  )
