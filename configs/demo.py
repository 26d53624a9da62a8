"""FedFish with the `tiny` model on Debian's package descriptions.

For a first look on two CPU cores: `fedfish demo` trains it in minutes, with
FedAvg beside it and at 1 and 8 local epochs. The learning rates were chosen
from 0.1, 0.3, 1 (client) and 1e-3, 3e-3 (server) by the loss of FedAvg on
held-out clients of another split (split_seed 103).
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fish'),
    client_work=dict(
      num_local_epochs=1,
      local_batch_size=4,
      max_sequences_per_client=8,
      learning_rate=0.1,
    ),
    server=dict(optimizer='adam', learning_rate=1e-3),
    model=dict(preset='tiny'),
    data=dict(
      directory='runs/demo/corpora/debian_descriptions',
      vocabulary='demo',
      sequence_length=64,
    ),
    cohorts=dict(cohort_size=8),
    training=dict(num_rounds=20),
    evaluation=dict(
      every_num_rounds=5, num_clients=16, max_sequences_per_client=16
    ),
    checkpoints=dict(every_num_rounds=10, keep_last=2),
  )


def get_sweep() -> dict:
  """Returns what varies and what is measured; docs/sweep.md lists it all."""
  sizes = dict(max_clients=16, max_sequences_per_client=16)
  return dict(
    # Longest first: of two runs at a time, short ones fill the gaps.
    grid={
      'algorithm.name': ['fed_fish', 'fed_avg'],
      'client_work.num_local_epochs': [8, 1],
    },
    evaluate=[
      dict(barrier=True, **sizes),
      dict(data='runs/demo/corpora/sotu_by_president', **sizes),
    ],
  )
