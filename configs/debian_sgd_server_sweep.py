"""FedFish, its mixes and FedAvg on Debian's text with a server of plain SGD.

For `fedfish sweep`: as debian_regime_sweep.py, with two seeds and a server
without momentum or a second moment, so that the length of the mean is the
length of the step. The server's learning rate is searched for each method at
the client rate of 0.01, on points a factor of 2 apart. 16 runs and some 20
searches.

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
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='tiny'),
      data=dict(
        directory='corpora/debian_by_owner',
        vocabulary='demo',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=8),
      training=dict(num_rounds=120),
      evaluation=dict(
        every_num_rounds=30,
        num_clients=24,
        max_sequences_per_client=16,
      ),
      checkpoints=dict(every_num_rounds=60, keep_last=1),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  arms = (
    'algorithm.name,algorithm.fisher_power,algorithm.plain_mean_fraction,'
    'algorithm.plain_mean_tensors'
  )
  sizes = dict(max_clients=64, max_sequences_per_client=16)
  return ConfigDict(
    dict(
      grid={
        arms: [
          ('fed_avg', 1.0, 0.0, 'none'),
          ('fed_fish', 1.0, 0.0, 'none'),
          ('fed_fish', 1.0, 0.0, 'logits'),
          ('fed_fish', 0.5, 0.5, 'logits'),
        ],
        'client_work.learning_rate': [0.1, 0.01],
        # The same seeds for all: pairs are compared.
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
          (1, 1, 1),
          (2, 2, 2),
        ],
      },
      learning_rate_search=dict(
        settings={'server.learning_rate': [1.0, 2.0, 4.0, 8.0]},
        max_extensions=6,
        num_rounds=60,
        per=[arms],
        num_clients=64,
      ),
      evaluate=[
        dict(**sizes),
        dict(data='corpora/sotu_by_president', **sizes),
      ],
    ),
    allow_dotted_keys=True,
  )
