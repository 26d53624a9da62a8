"""FedSGD: one gradient of every client, at the server's model."""

from tff_fedfish.methods.method import AlgorithmConfig, Method


def _problems(config):
  work = config.client_work
  return [
    f'`config.client_work.{name}` must be {wanted} with algorithm.name '
    f'{config.algorithm.name!r}, whose clients take no local steps, found '
    f'{found!r}'
    for name, wanted, found in (
      ('num_local_epochs', 1, work.num_local_epochs),
      ('num_local_steps', None, work.num_local_steps),
    )
    if found != wanted
  ]


METHOD = Method(
  name='fed_sgd',
  title='FedSGD',
  summary=(
    'Weighted mean of the gradients that the clients compute over all of '
    "their data at the server's model. Clients take no steps: "
    '`client_work.learning_rate` is not read.'
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
