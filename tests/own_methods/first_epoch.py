"""A method of one's own whose clients stop after their first local epoch."""

from tff_fedfish.methods import AlgorithmConfig, Method


def build_first_epoch(model, *, num_local_epochs, **training):
  """Builds FedAvg with fewer local steps than the config says."""
  from tff_fedfish.methods.fed_avg import build_fed_avg

  del num_local_epochs
  return build_fed_avg(model, num_local_epochs=1, **training)


METHOD = Method(
  name='first_epoch',
  title='First epoch',
  summary='FedAvg whose clients stop after their first local epoch.',
  source='This test.',
  settings=AlgorithmConfig,
  builder='own_methods.first_epoch:build_first_epoch',
)
