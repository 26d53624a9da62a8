"""FedFish with the EMNIST CNN on MNIST by writer: 539 clients, 297 held out.

The settings of EMNIST in Dhawan et al. (2024), Table 2, for a sixth of its
writers: cohorts of 32 instead of 64, and 200 rounds instead of 1,500. As there,
personalize for one epoch: `fedfish evaluate --personalization_epochs=1`.

The directory holds MNIST's four files and QMNIST's two files of labels, as
their owners publish them. Writers of MNIST's test images are held out.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fish'),
    client_work=dict(
      num_local_epochs=4,
      local_batch_size=10,
      max_sequences_per_client=100,
      learning_rate=1e-3,
    ),
    server=dict(optimizer='adam', learning_rate=1e-3),
    model=dict(preset='emnist_cnn'),
    data=dict(corpus='mnist_by_writer', directory='corpora/mnist_by_writer'),
    cohorts=dict(cohort_size=32),
    client_splits=dict(held_out_fraction=None),
    training=dict(num_rounds=200),
    evaluation=dict(
      every_num_rounds=20,
      num_clients=64,
      max_sequences_per_client=0,
      batch_size=64,
    ),
    checkpoints=dict(every_num_rounds=20, keep_last=2),
  )
