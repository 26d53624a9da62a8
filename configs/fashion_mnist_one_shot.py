"""One-shot learning with LeNet on Fashion-MNIST, as in FedFisher's paper.

Five clients whose shares of the classes are drawn from Dirichlet(0.1) train for
30 epochs, once. `--config.algorithm.name` chooses how the server makes one
model of theirs: fed_fisher, fisher_merge, reg_mean, ot_fusion, pfnm or dense;
`fedfish solve` does so again over the same clients. Some three minutes on
two CPU cores.

The directory holds Fashion-MNIST's four files, as their owner publishes them.
"""


def get_config() -> dict:
  """Returns the settings; docs/settings.md lists them all."""
  return dict(
    algorithm=dict(name='fed_fisher', keeps_uploads=True),
    client_work=dict(
      num_local_epochs=30,
      local_batch_size=64,
      max_sequences_per_client=None,
      learning_rate=0.01,
      momentum=0.9,
    ),
    server=dict(optimizer='sgd', learning_rate=1.0),
    model=dict(preset='lenet'),
    data=dict(corpus='fashion_mnist', directory='corpora/fashion_mnist'),
    partition=dict(
      scheme='per_client_over_classes_normalised',
      num_clients=5,
      alpha=0.1,
      held_out='whole',
    ),
    cohorts=dict(cohort_size=None),
    client_splits=dict(held_out_fraction=None),
    training=dict(num_rounds=1),
    evaluation=dict(
      every_num_rounds=1,
      num_clients=1,
      max_sequences_per_client=0,
      batch_size=500,
    ),
    checkpoints=dict(every_num_rounds=0),
  )
