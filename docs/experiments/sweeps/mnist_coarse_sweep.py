"""FedFish at FedAvg's communication on MNIST by writer.

For `fedfish sweep`: FedAvg; FedFish with a weight per element, as printed; and
per input unit (of a convolution its channel), with the root and half of each
client's own mean. Client rate 0.01, E = 1 and 16, cohorts of 8, 20 rounds,
three seeds; the server's learning rate is searched for each of them and each
E. Primary: the last against FedAvg, at equal rounds and at equal bytes. 18 runs
and some 30 searches, 1 to 6 minutes each on two cores.

Expected, as differences from FedAvg in held-out loss after 20 rounds, in nats:

- per element -0.04 to -0.01 at E = 1, as in mnist_regime_sweep.py, and within
  0.02 at E = 16; behind at equal bytes;
- power 1/2 and mix 1/2 per input unit: -0.02 to 0 at both (simulated: -0.008 to
  -0.013), at equal bytes, too; accuracy within 0.3 points.

The files are those of mnist_by_writer.py.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  return base(
    'mnist_by_writer',
    {
      'checkpoints.every_num_rounds': 10,
      'checkpoints.keep_last': 1,
      'client_work.learning_rate': 0.01,
      'cohorts.cohort_size': 8,
      'evaluation.every_num_rounds': 5,
      'evaluation.max_sequences_per_client': 40,
      'server.learning_rate': 0.01,
      'training.num_rounds': 20,
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
        ('fed_fish', 'element', 1.0, None),
        ('fed_fish', 'input', 0.5, 0.5),
      ],
      'client_work.num_local_epochs': [1, 16],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    learning_rate_search=dict(
      settings={'server.learning_rate': [2.5e-3, 5e-3, 1e-2, 2e-2]},
      max_extensions=3,
      num_rounds=10,
      per=[arms, 'client_work.num_local_epochs'],
      num_clients=64,
    ),
    evaluate=[
      dict(
        personalization_epochs=1,
        max_clients=None,
        max_sequences_per_client=None,
      )
    ],
  )
