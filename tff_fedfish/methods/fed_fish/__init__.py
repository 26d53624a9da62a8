"""FedFish: the mean of the model deltas, weighted by Fisher diagonals.

Dhawan et al. (2024), "Leveraging function space aggregation for federated
learning at scale", equation 4 and algorithms 1 and 2:

  client i:  theta_i after E local epochs from theta_G
             delta_i = theta_G - theta_i
             F_i[j] = sum_b g_b[j]^2    in one more pass over its batches b
  server:    g[j] = sum_i w_i F_i[j] delta_i[j] / sum_i w_i F_i[j]
             theta_G <- server optimizer step on g

| letter | meaning |
|---|---|
| g_b | gradient of the mean loss of batch b at theta_i |
| F_i | empirical Fisher diagonal, (nats / weight)^2 |
| w_i | client weight: its number of sequences, or 1 |
| sum_i w_i F_i | Fisher mass |

With SGD of rate 1, theta_G becomes sum_i w_i F_i theta_i / sum_i w_i F_i. With
'sum' and w_i in sequences, as printed, the amount of data counts twice.

Not in the paper: F^p in place of F, F divided by its mean over a tensor, and

  s sum_i w_i delta_i / sum_i w_i + (1 - s) g

p = 1 and s = 0 is FedFish, p = 0 or s = 1 FedAvg. A tensor with F = 1 takes
FedAvg's mean. `process.py` has the computation.
"""

import dataclasses
import math
from typing import Literal

from models.model_shapes import weight_shapes
from models.transformer_config import LOGITS_TENSORS
from tff_fedfish.fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column, Traffic
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFishConfig(AlgorithmConfig):
  """Settings of FedFish: how Fisher diagonals are estimated and weighed."""

  fisher_estimator: Literal[
    'extra_pass', 'last_epoch', 'example_sq', 'second_moment'
  ] = 'extra_pass'
  """Squared gradients that make the Fisher diagonal: of every batch in one more
  pass ('extra_pass'), of the steps of the last epoch ('last_epoch'), or of
  single sequences ('example_sq'); or AdamW's second moment, its bias corrected,
  at no cost ('second_moment')."""
  fisher_reduction: Literal['sum', 'mean'] = 'sum'
  """Reduction over a client's batches: 'sum' as printed in the paper, or
  'mean'. 'second_moment' is a mean: leave it at 'sum'."""
  fisher_normalization: Literal['none', 'tensor_mean'] = 'none'
  """'tensor_mean' divides every tensor of a client's diagonal by its mean, each
  layer of a transformer by itself, so that clients who fit their data count as
  much as others. Not in the paper."""
  relative_floor: float = number(1e-8, at_least=0)
  """Damping: fraction of its tensor's mean added to each Fisher entry, >= 0.
  Layers of a transformer share one mean. Where nobody is informed, clients then
  weigh as much as these means, which is not FedAvg's mean."""
  fisher_power: float = number(1.0, at_least=0, at_most=1)
  """p, in [0, 1]: clients are weighed by F^p. 1: the paper's; 0: FedAvg, and no
  Fisher diagonal is computed."""
  plain_mean_fraction: float = number(0.0, at_least=0, at_most=1)
  """s, in [0, 1]: s times FedAvg's mean plus 1 - s times the Fisher-weighted
  one. 0: the paper's; 1: FedAvg. A client moves a coordinate by at most s w_i /
  sum w + 1 - s of its delta."""
  plain_mean_tensors: Literal['none', 'logits'] = 'none'
  """Tensors that take FedAvg's mean: none, or those that make a language
  model's logits. Its token embedding does so as a whole, as it is tied to the
  output."""

  @property
  def is_plain_mean(self) -> bool:
    """Whether nothing is left of the Fisher weights: FedAvg."""
    return self.fisher_power == 0 or self.plain_mean_fraction == 1


def _problems(config):
  settings = config.algorithm
  problems = []
  if settings.fisher_estimator == 'second_moment':
    expected = (
      ('algorithm.fisher_reduction', 'sum'),
      ('client_work.optimizer', 'adamw'),
      ('client_work.max_gradient_norm', None),
      ('client_work.keeps_optimizer_state', False),
    )
    because = "with fisher_estimator 'second_moment'"
    problems += settings_unlike(config, expected, because)
  if config.local_privacy.is_on and not settings.is_plain_mean:
    expected = [('algorithm.fisher_estimator', 'last_epoch')]
    because = 'with local_privacy, as others read data without noise'
    problems += settings_unlike(config, expected, because)
  if config.data.holds_images:
    expected = [('algorithm.plain_mean_tensors', 'none')]
    because = f'with corpus {config.data.corpus!r}, which is no text'
    problems += settings_unlike(config, expected, because)
  return problems


def _traffic(config):
  """Counts w F and w F delta, with s also w delta; 1 for tensors with F = 1."""
  settings = config.algorithm
  if settings.is_plain_mean:
    return Traffic()
  num_means = 3 if settings.plain_mean_fraction else 2
  share = 0.0
  if settings.plain_mean_tensors == 'logits':
    shape = config.model_shape()
    sizes = {n: math.prod(s) for n, s in weight_shapes(shape).items()}
    share = sum(sizes[n] for n in LOGITS_TENSORS) / sum(sizes.values())
  return Traffic(uplink=num_means * (1 - share) + share)


def _cost(config):
  estimator = config.algorithm.fisher_estimator
  if config.algorithm.is_plain_mean or estimator == 'second_moment':
    return ClientCost()
  # The sums of squares, and the pass in which they are formed.
  return ClientCost(
    models_held=1, passes_after_training=int(estimator != 'last_epoch')
  )


def _columns(config):
  if config.algorithm.is_plain_mean:
    return ()
  name = 'num_overflowing_clients'
  return (Column(f'train/{name}', ('aggregator', name)),)


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
  builder='tff_fedfish.methods.fed_fish.process:build_fed_fish',
  traffic=_traffic,
  cost=_cost,
  columns=_columns,
  problems=_problems,
  mass='tff_fedfish.methods.fed_fish.process:client_mass',
  hue='#D55E00',
  hatch='',
)
