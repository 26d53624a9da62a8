"""FedFish with the `tiny` model on Debian's package descriptions.

For a first look on two CPU cores: `fedfish demo` trains it in minutes. The
demo fills in the two paths and varies the method and the local epochs.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the settings; README.md lists them all."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_fish'),
      client_work=dict(
        num_local_epochs=1,
        local_batch_size=4,
        max_sequences_per_client=16,
        learning_rate=0.1,
      ),
      server=dict(optimizer='adam', learning_rate=1e-2),
      model=dict(preset='tiny'),
      data=dict(
        directory='runs/demo/corpora/debian_descriptions',
        vocabulary='runs/demo/vocabulary',
        sequence_length=64,
      ),
      cohorts=dict(cohort_size=8),
      training=dict(num_rounds=50),
      evaluation=dict(every_num_rounds=10, num_clients=32),
      checkpoints=dict(every_num_rounds=25, keep_last=2),
    )
  )
  return config.lock()
