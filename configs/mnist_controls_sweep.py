"""Changes that may explain the map of mnist_regime_sweep.py, one at a time.

For `fedfish sweep`: the runs of mnist_regime_sweep.py, whose server's learning
rates were searched there, with one change each: FedFish and FedAvg at 16 local
epochs with half of that rate; FedFish at 4 with dropout in the pass of the
Fisher diagonal, as the algorithm of Dhawan et al. (2024) reads; FedAvg at 1
with a tenth of Adam's epsilon. 24 runs, 1 to 5 minutes each on two cores.

The files are those of mnist_by_writer.py.
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
        learning_rate=1e-3,
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
        max_sequences_per_client=40,
        batch_size=64,
      ),
      checkpoints=dict(every_num_rounds=10, keep_last=1),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  changes = (
    'algorithm.name,algorithm.fisher_training_mode,'
    'client_work.num_local_epochs,server.learning_rate,server.epsilon'
  )
  return ConfigDict(
    dict(
      grid={
        changes: [
          ('fed_fish', False, 16, 1e-2, 1e-7),
          ('fed_avg', False, 16, 1e-2, 1e-7),
          ('fed_fish', True, 4, 5e-3, 1e-7),
          ('fed_avg', False, 1, 5e-3, 1e-8),
        ],
        'client_work.learning_rate': [1e-3, 1e-2],
        # The same seeds for all: pairs are compared.
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
          (1, 1, 1),
          (2, 2, 2),
          (3, 3, 3),
        ],
      },
      evaluate=[
        # As Dhawan et al. (2024) fine-tune on EMNIST.
        dict(fractions=[0.0, 0.25, 0.5], personalization_epochs=1),
      ],
    ),
    allow_dotted_keys=True,
  )
