"""DiLoCo with the `350m` model on C4, 8 workers with an accelerator each.

The settings of Douillard et al. (2023), "DiLoCo: Distributed low-communication
training of language models", for 8 workers and 500 local steps.
docs/optimizers.md says what differs. Batches of 512 sequences pass through the
model 16 at a time.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_avg', client_weighting='uniform'),
    client_work=dict(
      num_local_epochs=1,
      num_local_steps=500,
      max_sequences_per_client=None,
      local_batch_size=512,
      micro_batch_size=16,
      optimizer='adamw',
      keeps_optimizer_state=True,
      learning_rate=4e-4,
      weight_decay=0.1,
      max_gradient_norm=1.0,
      learning_rate_schedule='cosine',
      warmup_rounds=2,
      schedule_rounds=174,
      final_fraction=0.1,
    ),
    server=dict(
      optimizer='sgd', learning_rate=0.7, momentum=0.9, nesterov=True
    ),
    model=dict(preset='350m', compute_dtype='bfloat16'),
    data=dict(
      directory='corpora/c4_tokens',
      vocabulary='vocabularies/c4_32000',
      sequence_length=1024,
    ),
    partition=dict(scheme='merge', num_clients=8),
    cohorts=dict(cohort_size=None),
    client_splits=dict(held_out_fraction=0.01),
    training=dict(num_rounds=176),
    evaluation=dict(every_num_rounds=8, num_clients=64),
    checkpoints=dict(every_num_rounds=4, keep_last=3),
    engine=dict(kind='ray', num_workers=8, num_partial_sums=8),
  )
