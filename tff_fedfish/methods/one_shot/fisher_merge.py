"""FisherMerge: the mean of the models, weighted by their Fisher diagonals."""

import dataclasses

from tff_fedfish.config_fields import number
from tff_fedfish.methods.one_shot import OneShotConfig, one_shot_method


@dataclasses.dataclass(frozen=True, kw_only=True)
class FisherMergeConfig(OneShotConfig):
  """Settings of FisherMerge."""

  fisher_floor: float = number(1e-6, at_least=0)
  """Sum of the clients' weighted diagonals below which a coordinate takes the
  average of the models, >= 0."""
  divides_by_norm: bool = False
  """Whether each client's diagonal is divided by its global L2 norm first."""


METHOD = one_shot_method(
  name='fisher_merge',
  title='FisherMerge',
  summary=(
    'One-shot: the mean of the models, each coordinate weighted by the '
    "clients' Fisher diagonals."
  ),
  source=(
    'Matena and Raffel (2022), "Merging models with Fisher-weighted averaging"'
  ),
  settings=FisherMergeConfig,
  summary_of=lambda config: 'diagonal',
  solver='tff_fedfish.methods.one_shot.fisher_merge_solve:solve',
  solve_models=lambda config, num_clients: 6,
  hue='#CC6677',
  hatch='xx',
)
