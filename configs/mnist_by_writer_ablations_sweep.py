"""FedFish's choices one by one on MNIST by writer.

For `fedfish sweep`: the runs of mnist_by_writer_sweep.py at 4 local epochs,
where FedFish is as printed and where one choice is another: how the Fisher
diagonal is estimated, whether it is summed or averaged over batches, how
clients are weighted and how much of an average every entry is given. Ten
variants, FedAvg among them, with three seeds each: 30 runs, some 40 minutes on
two CPU cores.
"""

from ml_collections import ConfigDict

from configs import mnist_by_writer_sweep


def get_config() -> ConfigDict:
  """Returns the base of all runs; README.md lists the settings."""
  config = mnist_by_writer_sweep.get_config()
  # What that sweep's search chooses for both methods.
  config.client_work.learning_rate = 1e-2
  config.server.learning_rate = 1e-2
  return config


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sweep = mnist_by_writer_sweep.get_sweep()
  seeds = 'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed'
  names = [
    'algorithm.name',
    'algorithm.fisher_estimator',
    'algorithm.fisher_reduction',
    'algorithm.client_weighting',
    'algorithm.relative_floor',
  ]
  return ConfigDict(
    dict(
      grid={
        ','.join(names): [
          ('fed_avg', 'extra_pass', 'sum', 'num_examples', 1e-8),
          ('fed_fish', 'extra_pass', 'sum', 'num_examples', 1e-8),
          ('fed_fish', 'last_epoch', 'sum', 'num_examples', 1e-8),
          ('fed_fish', 'example_sq', 'sum', 'num_examples', 1e-8),
          ('fed_fish', 'true', 'sum', 'num_examples', 1e-8),
          ('fed_fish', 'extra_pass', 'mean', 'num_examples', 1e-8),
          ('fed_fish', 'extra_pass', 'sum', 'uniform', 1e-8),
          ('fed_fish', 'extra_pass', 'sum', 'num_examples', 0.0),
          ('fed_fish', 'extra_pass', 'sum', 'num_examples', 1e-2),
          ('fed_fish', 'extra_pass', 'sum', 'num_examples', 1.0),
        ],
        seeds: sweep.grid[seeds],
      },
      evaluate=sweep.evaluate,
    ),
    allow_dotted_keys=True,
  )
