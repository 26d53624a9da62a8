"""DiLoCo with the `tiny` model on Debian's package descriptions.

FedAvg with AdamW clients and Nesterov momentum on the server: 4 large clients,
all of which take part in every round and take 50 local steps.
docs/optimizers.md says what differs from Douillard et al. (2023), and how the
corpus of `make demo` is tokenized first.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_avg'),
    client_work=dict(
      num_local_epochs=1,
      num_local_steps=50,
      max_sequences_per_client=None,
      local_batch_size=8,
      optimizer='adamw',
      keeps_optimizer_state=True,
      learning_rate=1e-3,
      weight_decay=0.1,
      max_gradient_norm=1.0,
      learning_rate_schedule='cosine',
      warmup_rounds=2,
      schedule_rounds=28,
      final_fraction=0.1,
    ),
    server=dict(
      optimizer='sgd', learning_rate=0.7, momentum=0.9, nesterov=True
    ),
    model=dict(preset='tiny'),
    data=dict(
      directory='runs/demo/corpora/debian_descriptions_tokens',
      vocabulary='demo',
      sequence_length=64,
    ),
    partition=dict(scheme='merge', num_clients=4),
    cohorts=dict(cohort_size=None),
    training=dict(num_rounds=30),
    evaluation=dict(
      every_num_rounds=5, num_clients=24, max_sequences_per_client=16
    ),
    checkpoints=dict(every_num_rounds=10, keep_last=2),
  )
