"""The arms of debian_regime_sweep.py at a tenth of its clients' learning rate.

For `fedfish sweep`: FedAvg, FedFish as printed, FedFish with the tensor of the
logits left to the plain mean, and the mix, at a client learning rate of 0.01
with the server's learning rates that were searched in debian_regime_sweep.py,
at the client rate of 0.1. 12 runs; half an hour on two CPU cores.

debian_sweep.py says how the corpora are made.
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
        learning_rate=0.01,
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
      checkpoints=dict(every_num_rounds=60, keep_last=1),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_power,algorithm.plain_mean_fraction,'
    'algorithm.plain_mean_tensors,server.learning_rate'
  )
  sizes = dict(max_clients=64, max_sequences_per_client=16)
  return ConfigDict(
    dict(
      grid={
        arms: [
          ('fed_avg', 1.0, 0.0, 'none', 2e-3),
          ('fed_fish', 1.0, 0.0, 'none', 1e-3),
          ('fed_fish', 1.0, 0.0, 'logits', 2e-3),
          ('fed_fish', 0.5, 0.5, 'logits', 2e-3),
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
    ),
    allow_dotted_keys=True,
  )
