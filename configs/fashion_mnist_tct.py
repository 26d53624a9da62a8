"""TCT with LeNet on Fashion-MNIST where every client has two of ten classes.

20 rounds of FedAvg, one round in which every client computes the features of
3,000 of its images, 20 convex rounds. 10 clients, all of which take part in
every round; some 3 GB of disk and 15 minutes on two CPU cores. Yu et al.
(2022) train 100 and 100 rounds with 6,000 images a client.

The directory holds Fashion-MNIST's four files, as their owner publishes them.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='tct', num_bootstrap_rounds=20),
    client_work=dict(
      num_local_epochs=5,
      local_batch_size=64,
      max_sequences_per_client=3000,
      learning_rate=0.05,
    ),
    server=dict(optimizer='sgd', learning_rate=1.0),
    model=dict(preset='lenet'),
    data=dict(corpus='fashion_mnist', directory='corpora/fashion_mnist'),
    partition=dict(
      scheme='fixed_classes', num_clients=10, classes_per_client=2
    ),
    cohorts=dict(cohort_size=None),
    client_splits=dict(held_out_fraction=None),
    training=dict(num_rounds=41),
    evaluation=dict(
      every_num_rounds=10,
      num_clients=10,
      max_sequences_per_client=0,
      batch_size=250,
    ),
    checkpoints=dict(every_num_rounds=10, keep_last=2),
  )
