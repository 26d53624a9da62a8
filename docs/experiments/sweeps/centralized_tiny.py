"""Centralised SGD with the `tiny` model: the reference beside federated runs.

One client has all of the data that is not held out, and the server takes its
model as it is: a round is 50 steps of plain SGD in one loop over the data. The
corpus is that of `make demo`, tokenized as docs/optimizers.md says.
"""

from tff_fedfish.config.given import base


def get_config() -> dict:
  """Returns the settings."""
  return base(
    'demo',
    {
      'algorithm.name': 'fed_avg',
      'client_work.learning_rate': 0.3,
      'client_work.max_sequences_per_client': None,
      'client_work.num_local_steps': 50,
      'cohorts.cohort_size': None,
      'data.directory': 'runs/demo/corpora/debian_descriptions_tokens',
      'server.learning_rate': 1.0,
      'server.optimizer': 'sgd',
      'partition.num_clients': 1,
      'partition.scheme': 'merge',
    },
  )
