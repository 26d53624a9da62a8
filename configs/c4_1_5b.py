"""FedFish with the `1.5b` model on C4 grouped by web domain.

For a machine with several large accelerators' worth of memory. The settings of
Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", Table 2; of its local epochs (1 and 16) the smaller. Both
learning rates were grid searched there, and serve FedAvg and FedFish alike.

It prints neither epsilon, batching nor vocabulary. Adam here adds epsilon
before the bias correction, so that 1e-8 acts as 3.2e-7 in round 1. Clients all
have the same number of full batches, as in the FedC4 code of Charles et al.
(2023), "Towards federated foundation models", on which it builds; that code has
BERT's vocabulary, where this config has 32,000 pieces learned from the corpus.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fish'),
    client_work=dict(
      num_local_epochs=1,
      local_batch_size=4,
      max_sequences_per_client=16,
      learning_rate=1e-3,
    ),
    server=dict(optimizer='adam', learning_rate=1e-2, epsilon=1e-8),
    model=dict(preset='1.5b', compute_dtype='bfloat16'),
    data=dict(
      directory='corpora/c4',
      vocabulary='vocabularies/c4_32000',
      sequence_length=1_024,
      drop_short_block=True,
      client_batches='repeat_full',
      sampling='documents',
    ),
    cohorts=dict(cohort_size=8),
    training=dict(num_rounds=10_000),
    evaluation=dict(every_num_rounds=500, num_clients=64),
    checkpoints=dict(every_num_rounds=500, keep_last=3),
  )
