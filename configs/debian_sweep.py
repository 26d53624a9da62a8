"""FedFish and FedAvg by local epochs on Debian's package descriptions.

For `fedfish sweep`: the values of demo.py, over more rounds, at 1, 4 and 16
local epochs, for the same number of rounds and for the same number of local
steps, three seeds each: 30 runs, some hours on two CPU cores. `fedfish demo`
groups the corpora that it names.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the base of all runs; README.md lists the settings."""
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
        directory='runs/demo/corpora/debian_descriptions',
        vocabulary='tff_fedfish/corpora/demo_vocabulary',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=8),
      training=dict(num_rounds=120),
      evaluation=dict(
        every_num_rounds=30, num_clients=24, max_sequences_per_client=16
      ),
      checkpoints=dict(every_num_rounds=15, keep_last=2),
    )
  )
  return config.lock()


def get_sweep() -> ConfigDict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sizes = dict(max_clients=48, max_sequences_per_client=16)
  return ConfigDict(
    dict(
      grid={
        'algorithm.name': ['fed_avg', 'fed_fish'],
        'client_work.num_local_epochs': [1, 4, 16],
        # The same seeds for both methods: pairs are compared.
        'seeds.model_seed,seeds.cohort_seed,seeds.shuffle_seed': [
          (1, 1, 1),
          (2, 2, 2),
          (3, 3, 3),
        ],
      },
      # 120 rounds; and 480 local epochs: 480, 120 or 30 rounds.
      budget=['fixed_rounds', 'fixed_compute'],
      reference_local_epochs=4,
      evaluate=[
        dict(at=['half', 'last'], barrier=True, **sizes),
        dict(data='runs/demo/corpora/sotu_by_president', **sizes),
      ],
    ),
    allow_dotted_keys=True,
  )
