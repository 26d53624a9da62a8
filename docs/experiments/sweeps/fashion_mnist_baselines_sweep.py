"""Baselines on Fashion-MNIST where every client has two of ten classes.

For `fedfish sweep`: FedAvg, FedAdam and FedYogi, FedProx, MOON, SCAFFOLD and
FedSGD with LeNet; FedAvg and SCAFFOLD with a linear model. 10 clients, all of
which take part, 5 local epochs over 500 of their images, 12 rounds. 27 runs of
about a minute on two CPU cores.

The directory holds Fashion-MNIST's four files, as their owner publishes them.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the base of all runs."""
  config = base(
    'fashion_mnist_tct',
    {
      'checkpoints.every_num_rounds': 0,
      'checkpoints.keep_last': 0,
      'client_work.local_batch_size': 50,
      'client_work.max_sequences_per_client': 500,
      'cohorts.cohort_size': 10,
      'evaluation.batch_size': 100,
      'evaluation.every_num_rounds': 3,
      'training.num_rounds': 12,
    },
  )
  return config | {'algorithm': {'name': 'fed_avg', 'mu': 0.01}}


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'model.preset,algorithm.name,algorithm.mu,client_work.num_local_epochs,'
    'server.optimizer,server.learning_rate,server.epsilon'
  )
  sizes = dict(max_clients=None, max_sequences_per_client=None)
  return dict(
    grid={
      arms: [
        ('lenet', 'fed_avg', 0.0, 5, 'sgd', 1.0, 1e-7),
        # As Reddi et al. (2021) have them, but for bias correction.
        ('lenet', 'fed_avg', 0.0, 5, 'adam', 1e-2, 1e-3),
        ('lenet', 'fed_avg', 0.0, 5, 'yogi', 1e-2, 1e-3),
        ('lenet', 'fed_prox', 0.01, 5, 'sgd', 1.0, 1e-7),
        ('lenet', 'moon', 1.0, 5, 'sgd', 1.0, 1e-7),
        ('lenet', 'scaffold', 0.0, 5, 'sgd', 1.0, 1e-7),
        ('lenet', 'fed_sgd', 0.0, 1, 'sgd', 0.1, 1e-7),
        ('linear', 'fed_avg', 0.0, 5, 'sgd', 1.0, 1e-7),
        ('linear', 'scaffold', 0.0, 5, 'sgd', 1.0, 1e-7),
      ],
      # The same seeds for all: pairs are compared.
      'seeds.model_seed,seeds.shuffle_seed,seeds.partition_seed': [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
      ],
    },
    evaluate=[dict(fractions=[0.0], **sizes)],
  )
