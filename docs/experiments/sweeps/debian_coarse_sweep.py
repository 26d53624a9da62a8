"""FedFish at FedAvg's communication on Debian's text, with Adam at the server.

For `fedfish sweep`: FedAvg; FedFish with a weight per element, as printed, and
per input unit; the same with the root and half of each client's own mean, also
with the logits left to the plain mean. E = 4, SGD clients at 0.1, 120 rounds,
five seeds; the server's learning rate is searched for each, on points a factor
of 2 apart. Primary: 'input' with power 1/2 and mix 1/2 against FedAvg, at equal
rounds and at equal bytes, up and down. 25 runs and some 25 searches.

Expected, as differences from FedAvg in held-out loss after 120 rounds, in nats:

- per element +0.10 to +0.20, as in debian_regime_sweep.py;
- per input unit +0.04 to +0.12: a simulation had +0.09 where elements had
  +0.15. A token of one client no longer wins its row of the embedding;
- power 1/2 and mix 1/2: -0.02 to +0.02 (simulated: +0.005). Clients differ by a
  factor of few in mass; with the logits left out no further away;
- at equal bytes the same but for elements, which get worse: 1.01 models up.

debian_sweep.py says how the corpora are made.
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
      settings={'server.learning_rate': [1e-3, 2e-3, 4e-3, 8e-3]},
      max_extensions=4,
      num_rounds=60,
      per=[arms],
      num_clients=64,
    ),
    evaluate=[dict(fractions=[0], max_clients=64, max_sequences_per_client=16)],
  )
