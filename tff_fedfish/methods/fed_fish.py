"""FedFish: the Fisher-weighted mean of the model deltas."""

import dataclasses
from typing import Literal

from tff_fedfish.config_fields import number
from tff_fedfish.methods.method import (
  ClientCost,
  Column,
  Method,
  Traffic,
  own_settings,
)
from tff_fedfish.methods.settings import AlgorithmConfig

# Estimators that square the gradients of whole batches.
_OF_BATCHES = ('extra_pass', 'last_epoch')


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFishConfig(AlgorithmConfig):
  """Settings of FedFish: how Fisher diagonals are estimated and weighed."""

  fisher_estimator: Literal[
    'extra_pass', 'last_epoch', 'example_sq', 'true'
  ] = 'extra_pass'
  """Squared gradients that make the Fisher diagonal: of every batch in one more
  pass ('extra_pass'), of the steps of the last epoch ('last_epoch'), of single
  sequences ('example_sq'), or towards labels that the model draws ('true': the
  Fisher of the model's own distribution)."""
  fisher_reduction: Literal['sum', 'mean'] = 'sum'
  """Reduction over a client's batches: 'sum' as printed in the paper, or
  'mean'. With 'true' it is over the targets."""
  fisher_normalization: Literal['none', 'tensor_mean'] = 'none'
  """'tensor_mean' divides every tensor of a client's diagonal by its mean, so
  that clients who fit their data count as much as others. Not in the paper."""
  relative_floor: float = number(1e-8, at_least=0)
  """Damping: fraction of its tensor's mean added to each Fisher entry, >= 0."""
  ragged_correction: bool = False
  """Weighs a batch's squares by its fraction of `local_batch_size`, so that a
  last, smaller batch counts as the others. For 'extra_pass' and 'last_epoch'
  only."""
  max_mass_ratio: float | None = number(None, at_least=1)
  """Bound on a client's Fisher mass in a tensor, as a multiple of the mean mass
  of the last round's clients, >= 1. `None`: no bound."""

  def cross_problems(self, *, are_fields_right: bool) -> list[str]:
    """See `Section`."""
    if not self.ragged_correction or self.fisher_estimator in _OF_BATCHES:
      return []
    return [
      '`config.algorithm.ragged_correction` must be false with '
      f'fisher_estimator {self.fisher_estimator!r}, which squares no '
      'gradients of batches, found true'
    ]

  @property
  def samples_labels(self) -> bool:
    """Whether clients draw labels from the model, and so need seeds."""
    return self.fisher_estimator == 'true'


def _arguments(config):
  batch_size = config.client_work.local_batch_size
  return own_settings(config) | {'local_batch_size': batch_size}


def _cost(config):
  estimator = config.algorithm.fisher_estimator
  is_observed = estimator == 'last_epoch'
  passes = {'last_epoch': 'none', 'extra_pass': 'batches'}
  return ClientCost(
    # w F delta and w F.
    models_summed=2,
    # The sums of squares.
    models_in_training=int(is_observed),
    models_after_training=int(not is_observed),
    pass_after_training=passes.get(estimator, 'rows'),
    squares_last_epoch=is_observed,
    # Mean of F, floor, times w, times delta; two sums.
    flops_per_weight=6,
  )


def _columns(config):
  columns = (
    Column(
      'train/num_overflowing_clients',
      ('aggregator', 'num_overflowing_clients'),
    ),
    Column(
      'train/zero_fisher_mass_fraction', ('aggregator', 'zero_mass_fraction')
    ),
  )
  if config.algorithm.max_mass_ratio:
    path = ('aggregator', 'num_bounded_clients')
    columns += (Column('train/num_bounded_clients', path),)
  return columns


METHOD = Method(
  name='fed_fish',
  title='FedFish',
  summary=(
    'Function-space aggregation: mean of the model deltas, weighted in every '
    'coordinate by the Fisher diagonals of the clients.'
  ),
  source=(
    'Dhawan et al. (2024), "Leveraging function space aggregation for '
    'federated learning at scale"'
  ),
  settings=FedFishConfig,
  builder='tff_fedfish.algorithms.fed_fish:build_fed_fish',
  arguments=_arguments,
  traffic=lambda settings: Traffic(uplink=2),
  cost=_cost,
  columns=_columns,
  client_mass='tff_fedfish.algorithms.fed_fish:client_mass',
  sends='Fisher-weighted model deltas and Fisher diagonals',
  hue='#D55E00',
  hatch='',
)
