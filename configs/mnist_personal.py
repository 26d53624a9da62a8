"""Models of clients' own on MNIST, as in FedFomo's paper.

15 clients hold images of two classes each, in two shards; each validates on a
fifth of its images and is scored on the test images of its classes.
`--config.algorithm.name` chooses fed_fomo, local_only, or a method with a
global model, such as fed_avg, which `fedfish evaluate --client_split own_test`
scores on the same images. Some four minutes on two CPU cores.

The directory holds MNIST's four files, as their owners publish them.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fomo'),
    client_work=dict(
      num_local_epochs=5,
      local_batch_size=50,
      max_sequences_per_client=500,
      learning_rate=0.01,
    ),
    server=dict(optimizer='sgd', learning_rate=1.0),
    model=dict(preset='lenet'),
    data=dict(corpus='mnist', directory='corpora/mnist'),
    partition=dict(
      scheme='pathological_shards',
      num_clients=15,
      shards_per_client=2,
      held_out='matching',
    ),
    cohorts=dict(cohort_size=None),
    # Also of methods that do not validate: all train on the same images.
    client_splits=dict(held_out_fraction=None, validation_fraction=0.2),
    training=dict(num_rounds=20),
    evaluation=dict(
      every_num_rounds=5,
      num_clients=15,
      max_sequences_per_client=0,
      batch_size=500,
    ),
    checkpoints=dict(every_num_rounds=5),
  )
