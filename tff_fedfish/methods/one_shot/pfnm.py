"""PFNM: averages neurons that a Beta-Bernoulli process matches."""

import dataclasses
from typing import Any

from models.permutations import is_chain
from tff_fedfish.config_fields import number
from tff_fedfish.methods.one_shot import (
  OneShotConfig,
  image_problems,
  one_shot_method,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PfnmConfig(OneShotConfig):
  """Settings of PFNM."""

  sigma: float = number(1.0, above=0)
  """Standard deviation of a client's neuron around the global one, > 0. 1 as
  published is far above most weights; smaller values widen hidden layers. Unit:
  that of weights."""
  sigma0: float = number(1.0, above=0)
  """Standard deviation of global neurons around 0, > 0. 1 as published. Unit:
  that of weights."""
  gamma: float = number(7.0, above=0)
  """Expected number of neurons per client and layer in the prior, > 0."""
  max_growth: float = number(2.0, at_least=1)
  """Most neurons of a hidden layer as a multiple of the clients', >= 1."""


def _problems(config: Any) -> list[str]:
  problems = image_problems(config)
  if not problems and not is_chain(config.model_shape()):
    problems.append(
      '`config.model.preset` must be a model without residuals with '
      f"algorithm.name 'pfnm', found {config.model.preset!r}"
    )
  if config.training.num_rounds != 1:
    problems.append(
      "`config.training.num_rounds` must be 1 with algorithm.name 'pfnm', "
      'whose solution may be wider than the model that clients train, found '
      f'{config.training.num_rounds}'
    )
  return problems


def _solve_models(config: Any, num_clients: int) -> float:
  """Returns models held: a layer's vectors, wider sums and an upload."""
  growth = config.algorithm.max_growth
  # Vectors are held in float32 and float64, whose inputs may have grown.
  return 3 * growth * num_clients + 8 * growth**2 + 1


METHOD = one_shot_method(
  name='pfnm',
  title='PFNM',
  summary=(
    'One-shot, images only: neurons that clients share by a Beta-Bernoulli '
    'process are averaged, layer by layer, and the others stand beside them.'
  ),
  source=(
    'Yurochkin et al. (2019), "Bayesian nonparametric federated learning of '
    'neural networks"'
  ),
  settings=PfnmConfig,
  summary_of=lambda config: 'class_counts',
  problems=_problems,
  solver='tff_fedfish.methods.one_shot.pfnm_solve:solve',
  solve_models=_solve_models,
  hue='#661100',
  hatch='++',
)
