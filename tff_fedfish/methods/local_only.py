"""Local training only: the comparison without any federation."""

from tff_fedfish.methods.method import Method, PersonalModels, Slot, Traffic
from tff_fedfish.methods.personal import personal_problems
from tff_fedfish.methods.settings import AlgorithmConfig

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
  problems=personal_problems,
  sends='nothing',
  example='mnist_personal',
  hue='#888888',
  hatch='||||',
)
