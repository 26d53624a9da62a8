"""FedSGD: one gradient of every client, at the server's model."""

import dataclasses

from tff_fedfish.methods.method import Method
from tff_fedfish.methods.settings import AlgorithmConfig

# What a client without local steps may set: it has a default, and is read.
_READ = ('local_batch_size', 'max_sequences_per_client', 'micro_batch_size')
_READ += ('max_delta_norm',)


def _problems(config):
  work = config.client_work
  expected = {
    field.name: field.default
    for field in dataclasses.fields(work)
    # The learning rate is required, though nothing reads it.
    if field.name not in (*_READ, 'learning_rate')
  }
  expected['num_local_epochs'] = 1
  return [
    f'`config.client_work.{name}` must be {wanted} with algorithm.name '
    f'{config.algorithm.name!r}, whose clients take no local steps, found '
    f'{found!r}'
    for name, wanted in expected.items()
    if (found := getattr(work, name)) != wanted
  ]


METHOD = Method(
  name='fed_sgd',
  title='FedSGD',
  summary=(
    'Weighted mean of the gradients that the clients compute over all of '
    "their data at the server's model. Clients take no steps, and so have no "
    'optimizer: `client_work.learning_rate` is not read.'
  ),
  source=(
    'McMahan et al. (2017), "Communication-efficient learning of deep networks '
    'from decentralized data"'
  ),
  settings=AlgorithmConfig,
  builder='tff_fedfish.algorithms.fed_sgd:build_fed_sgd',
  problems=_problems,
  sends='weighted gradients',
  hue='#009E73',
  hatch='....',
)
