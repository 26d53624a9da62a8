"""Local training only: the comparison without any federation."""

import dataclasses
from typing import Any

from tff_fedfish.methods.method import Method, PersonalModels, Slot, Traffic
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalOnlyConfig(AlgorithmConfig):
  """Settings of local training: none of its own."""


_EXPECTED = (
  # Nothing is sent that could be clipped, and the server takes no step.
  ('client_work.max_delta_norm', None),
  ('evaluation.barrier_every_num_rounds', 0),
  ('evaluation.diagnostics_every_num_rounds', 0),
)


def personal_problems(config: Any) -> list[str]:
  """Returns the clauses that methods with clients' own models share."""
  return settings_unlike(
    config, _EXPECTED, 'with algorithm.name', config.algorithm.name
  )


METHOD = Method(
  name='local_only',
  title='Local models',
  summary=(
    'Every client trains a model of its own, from the same initial weights, '
    'and sends nothing.'
  ),
  source='the baseline of Zhang et al. (2021)',
  settings=LocalOnlyConfig,
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
