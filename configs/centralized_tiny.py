"""Centralised SGD with the `tiny` model: the reference beside federated runs.

One client has all of the data that is not held out, and the server takes its
model as it is: a round is 50 steps of plain SGD in one loop over the data. The
corpus is that of `make demo`, tokenized as docs/diloco.md says.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the settings; docs/settings.md lists them all."""
  config = ConfigDict(
    dict(
      algorithm=dict(name='fed_avg'),
      client_work=dict(
        num_local_epochs=1,
        num_local_steps=50,
        max_sequences_per_client=None,
        local_batch_size=4,
        learning_rate=0.3,
      ),
      server=dict(optimizer='sgd', learning_rate=1.0),
      model=dict(preset='tiny'),
      data=dict(
        directory='runs/demo/corpora/debian_descriptions_tokens',
        vocabulary='demo',
        sequence_length=64,
      ),
      partition=dict(scheme='merge', num_clients=1),
      cohorts=dict(cohort_size=None),
      training=dict(num_rounds=30),
      evaluation=dict(
        every_num_rounds=5, num_clients=24, max_sequences_per_client=16
      ),
      checkpoints=dict(every_num_rounds=10, keep_last=2),
    )
  )
  return config.lock()
