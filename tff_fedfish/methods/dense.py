"""DENSE: distills the clients' ensemble on images that a generator makes."""

import dataclasses

from tff_fedfish.config_fields import number
from tff_fedfish.methods.one_shot import (
  OneShotConfig,
  image_problems,
  one_shot_method,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig(OneShotConfig):
  """Settings of DENSE."""

  num_outer_epochs: int = number(20, at_least=1)
  """Alternations of generator and student, >= 1."""
  num_generator_steps: int = number(30, at_least=1)
  """Steps of the generator in each, >= 1."""


METHOD = one_shot_method(
  name='dense',
  title='DENSE',
  summary=(
    "One-shot, images only: the average is trained on the clients' ensemble "
    'with images from a generator that is trained against it.'
  ),
  source=(
    'Zhang et al. (2022), "DENSE: Data-free one-shot federated learning"'
  ),
  settings=DenseConfig,
  summary_of=lambda config: 'none',
  problems=image_problems,
  solver='tff_fedfish.one_shot.dense:solve',
  solve_models=lambda config, num_clients: num_clients + 8,
  hue='#AA4499',
  hatch='..',
)
