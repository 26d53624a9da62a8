"""Controls of debian_small_rate_sweep.py: epsilon, and the server's rate.

For `fedfish sweep`, one change at a time to the runs of that file, all at a
client learning rate of 0.01:

- `server.epsilon` at 1e-8 instead of 1e-7. Adam's steps do not depend on the
  scale of its gradients but for epsilon, and deltas at 0.01 are about a tenth
  of those at 0.1: with a tenth of epsilon they are damped as much as there;
- other learning rates of the server, whose search was made at the client rate
  of 0.1: FedAvg with twice, half and a quarter of it, the others with half.

27 runs; 40 minutes on two CPU cores. debian_sweep.py says how the corpora are
made.
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
    },
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_power,algorithm.plain_mean_fraction,'
    'algorithm.plain_mean_tensors,server.learning_rate,server.epsilon'
  )
  sizes = dict(max_clients=64, max_sequences_per_client=16)
  return dict(
    grid={
      arms: [
        ('fed_avg', 1.0, 0.0, 'none', 2e-3, 1e-8),
        ('fed_fish', 1.0, 0.0, 'none', 1e-3, 1e-8),
        ('fed_fish', 1.0, 0.0, 'logits', 2e-3, 1e-8),
        ('fed_fish', 0.5, 0.5, 'logits', 2e-3, 1e-8),
        ('fed_avg', 1.0, 0.0, 'none', 4e-3, 1e-7),
        ('fed_avg', 1.0, 0.0, 'none', 1e-3, 1e-7),
        ('fed_avg', 1.0, 0.0, 'none', 5e-4, 1e-7),
        ('fed_fish', 1.0, 0.0, 'logits', 1e-3, 1e-7),
        ('fed_fish', 0.5, 0.5, 'logits', 1e-3, 1e-7),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    evaluate=[
      dict(**sizes),
      dict(data='corpora/sotu_by_president', **sizes),
    ],
  )
