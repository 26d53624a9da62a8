"""FedFish with the `small` model (14 M weights) on grouped C4.

For one machine with a GPU, or for patience on a CPU: the step between the demo
and the published sizes. Group some shards of C4 and train a vocabulary of 8192
first, or name yours with --config.data.directory and --config.data.vocabulary.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fish'),
    client_work=dict(
      num_local_epochs=1,
      local_batch_size=4,
      max_sequences_per_client=16,
      learning_rate=1e-2,
    ),
    server=dict(optimizer='adam', learning_rate=1e-2),
    model=dict(preset='small'),
    data=dict(
      directory='corpora/c4',
      vocabulary='vocabularies/c4_8192',
      sequence_length=128,
    ),
    cohorts=dict(cohort_size=16),
    training=dict(num_rounds=1_500),
    evaluation=dict(every_num_rounds=100, num_clients=64),
    checkpoints=dict(every_num_rounds=100, keep_last=3),
  )
