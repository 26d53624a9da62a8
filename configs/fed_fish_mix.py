"""A milder weighting than that of FedFish, with the `tiny` model on text.

Half of FedAvg's mean and half of the mean weighted by the root of the Fisher
diagonal; the tensor of the logits takes FedAvg's mean, as squared gradients
count where a token occurs and discard where it does not.
docs/experiments/ says where it was measured. With images leave out
plain_mean_tensors. FedFish as printed has none of the three settings.

Data and vocabulary are those of demo.py, which `fedfish demo` makes; the
server's rate is the best of four (docs/experiments/text.md).
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(
      name='fed_fish',
      fisher_power=0.5,
      plain_mean_fraction=0.5,
      plain_mean_tensors='logits',
    ),
    client_work=dict(
      num_local_epochs=4,
      local_batch_size=4,
      max_sequences_per_client=8,
      learning_rate=0.1,
    ),
    server=dict(optimizer='adam', learning_rate=2e-3),
    model=dict(preset='tiny'),
    data=dict(
      directory='runs/demo/corpora/debian_descriptions',
      vocabulary='demo',
      sequence_length=64,
    ),
    cohorts=dict(cohort_size=8),
    training=dict(num_rounds=120),
    evaluation=dict(
      every_num_rounds=30, num_clients=24, max_sequences_per_client=16
    ),
    checkpoints=dict(every_num_rounds=60, keep_last=2),
  )
