"""A possible reason of FedFish's scores on Debian's descriptions, tried.

For `fedfish sweep`: the runs of debian_sweep.py at 4 local epochs and 120
rounds, with the server's learning rate that its search chooses for both
methods. Beside them FedAvg with cohorts of 3 clients, about as many as
FedFish's mean over 8 is worth, and FedFish with squares of every sequence's
gradient, of which a client has more than batches. Four runs of one seed, some 7
minutes on two CPU cores.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; docs/settings.md lists them."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fish'),
      client_work=dict(
        num_local_epochs=4,
        local_batch_size=4,
        max_sequences_per_client=8,
        learning_rate=0.1,
      ),
      server=dict(optimizer='adam', learning_rate=1e-3),
      model=dict(preset='tiny'),
      data=dict(
        directory='corpora/debian_by_owner',
        vocabulary='demo',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=8),
      training=dict(num_rounds=120),
      evaluation=dict(
        every_num_rounds=30, num_clients=24, max_sequences_per_client=16
      ),
      checkpoints=dict(
        every_num_rounds=15, keep_every_num_rounds=60, keep_last=2
      ),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  return ConfigDict(
    dict(
      grid={
        'algorithm.name,algorithm.fisher_estimator,cohorts.cohort_size': [
          ('fed_avg', 'extra_pass', 8),
          ('fed_avg', 'extra_pass', 3),
          ('fed_fish', 'extra_pass', 8),
          ('fed_fish', 'example_sq', 8),
        ],
        # The same seeds for all: pairs are compared.
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [(1, 1, 1)],
      },
      evaluate=[
        dict(barrier=True, max_clients=64, max_sequences_per_client=16)
      ],
    ),
    allow_dotted_keys=True,
  )
