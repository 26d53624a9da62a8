"""Local training only: the comparison without any federation."""

from tff_fedfish.methods.method import Method, PersonalModels, Slot, Traffic
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike

_EXPECTED = (
  # Nothing is sent that could be clipped, and the server takes no step.
  ('client_work.max_delta_norm', None),
  ('evaluation.barrier_every_num_rounds', 0),
)

METHOD = Method(
  name='local_only',
  title='Local models',
  summary=(
    'Every client trains a model of its own, from the same initial weights, '
    'and sends nothing.'
  ),
  source='the baseline of Zhang et al. (2021)',
  settings=AlgorithmConfig,
  builder='tff_fedfish.algorithms.local_only:build_local_only',
  traffic=lambda config: Traffic(0, 0),
  slots=lambda config: (Slot('model', 1),),
  personal=lambda config: PersonalModels(),
  problems=lambda config: settings_unlike(
    config, _EXPECTED, "with algorithm.name 'local_only'"
  ),
  sends='nothing',
  example='mnist_personal',
  hue='#888888',
  hatch='||||',
)
