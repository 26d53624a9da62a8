"""FedFish's choices one by one on MNIST by writer.

For `fedfish sweep`: the runs of mnist_by_writer_sweep.py at 4 local epochs,
with the learning rates that its search chooses for FedAvg and for FedFish as
printed, not for every variant. FedFish is as printed, or one choice is another:
how the Fisher diagonal is estimated, whether it is summed or averaged over
batches, whether clients have the same mass, how they are weighed and how much
of its tensor's mean every entry is given. Nine variants, FedAvg among them,
with two seeds each: 18 runs, some 35 minutes on two CPU cores.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fish'),
      client_work=dict(
        num_local_epochs=4,
        local_batch_size=10,
        max_sequences_per_client=100,
        learning_rate=1e-2,
      ),
      server=dict(optimizer='adam', learning_rate=1e-2),
      model=dict(preset='emnist_cnn'),
      data=dict(corpus='mnist_by_writer', directory='corpora/mnist_by_writer'),
      cohorts=dict(cohort_size=8),
      client_splits=dict(held_out_fraction=None),
      training=dict(num_rounds=20),
      evaluation=dict(
        every_num_rounds=5,
        num_clients=64,
        max_sequences_per_client=0,
        batch_size=64,
      ),
      checkpoints=dict(every_num_rounds=10, keep_last=1),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  as_printed = {
    'algorithm.name': 'fed_fish',
    'algorithm.fisher_estimator': 'extra_pass',
    'algorithm.fisher_reduction': 'sum',
    'algorithm.fisher_normalization': 'none',
    'algorithm.client_weighting': 'num_examples',
    'algorithm.relative_floor': 1e-8,
  }

  def variant(**choices):
    return [
      choices.get(name.removeprefix('algorithm.'), value)
      for name, value in as_printed.items()
    ]

  return ConfigDict(
    dict(
      grid={
        ','.join(as_printed): [
          variant(name='fed_avg'),
          variant(),
          variant(fisher_estimator='last_epoch'),
          variant(fisher_estimator='example_sq'),
          variant(fisher_estimator='true'),
          variant(fisher_reduction='mean'),
          variant(fisher_normalization='tensor_mean'),
          variant(client_weighting='uniform'),
          variant(relative_floor=1.0),
        ],
        # The same seeds for all: pairs are compared.
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
          (1, 1, 1),
          (2, 2, 2),
        ],
      },
      evaluate=[
        dict(
          fractions=[0.0, 0.5],
          # As Dhawan et al. (2024) fine-tune on EMNIST.
          personalization_epochs=1,
          barrier=True,
        ),
      ],
    ),
    allow_dotted_keys=True,
  )
