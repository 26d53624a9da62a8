"""FedFish with the `350m` model on Stack Overflow grouped by author.

For a machine with a large accelerator. The settings of Dhawan et al. (2024),
"Leveraging function space aggregation for federated learning at scale",
Table 2; of its local epochs (8 and 16) the smaller. Both learning rates were
grid searched there, and serve FedAvg and FedFish alike. It prints neither
epsilon, batching nor vocabulary; see configs/c4_1_5b.py.

Group with --split_by source first: all users of the part `train` take part,
and `fedfish evaluate --data corpora/stack_overflow/held_out` scores others.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fish'),
    client_work=dict(
      num_local_epochs=8,
      local_batch_size=4,
      max_sequences_per_client=16,
      learning_rate=1e-3,
    ),
    server=dict(optimizer='adam', learning_rate=1e-2, epsilon=1e-8),
    model=dict(preset='350m', compute_dtype='bfloat16'),
    data=dict(
      directory='corpora/stack_overflow/train',
      vocabulary='vocabularies/stack_overflow_32000',
      sequence_length=128,
      drop_short_block=True,
      client_batches='repeat_full',
      sampling='documents',
    ),
    cohorts=dict(cohort_size=16),
    client_splits=dict(held_out_fraction=0.0),
    training=dict(num_rounds=1_500),
    evaluation=dict(every_num_rounds=0, num_clients=0),
    checkpoints=dict(every_num_rounds=100, keep_last=3),
  )
