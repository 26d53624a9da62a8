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

Not in the paper: F^p in place of F, its means along an axis of each matrix, F
divided by its mean over a tensor, and two mixtures with FedAvg's mean, of the
aggregates or of the weights:

  s sum_i w_i delta_i / sum_i w_i + (1 - s) g
  m_i = 1 - q + q min(F_i^p / mean F_i^p, c)  in place of F_i

p = 1 and s = 0 is FedFish, p = 0, s = 1 or q = 0 FedAvg. m_i is between 1 - q
and 1 - q + q c, whatever the gradients are; `relative_floor` is added to it,
and `aggregation.bits` round that of elements. A tensor with F = 1 takes
FedAvg's mean. `process.py` has the computation.
"""

import dataclasses
import math
from typing import Literal

from models.model_shapes import are_stacked, input_axes, weight_shapes
from models.transformer_config import LOGITS_TENSORS
from tff_fedfish.fields import SET, number, setting
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import ClientCost, Column, Traffic
from tff_fedfish.methods.settings import AlgorithmConfig, settings_unlike
from tff_fedfish.rounds.compression import LOGARITHM_BITS, packed_bytes


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
  fisher_normalization: Literal['none', 'tensor_mean'] = setting(
    'none', read_with={'fisher_mix': (None,)}
  )
  """'tensor_mean' divides every tensor of a client's diagonal by its mean, each
  layer of a transformer by itself, so that clients who fit their data count as
  much as others. Not in the paper."""
  fisher_granularity: Literal['element', 'input', 'output', 'tensor'] = (
    'element'
  )
  """Unit that has a weight of its own: every element (the paper's), every input
  or output unit of a matrix, or every tensor. F^p is averaged over the elements
  of a unit, each layer of a transformer by itself. A unit of a convolution is a
  channel; the tied token embedding maps hidden units to tokens. Biases and
  norms keep their elements, except with 'tensor'. Clients send 1/width of a
  model beside the delta in place of a whole one."""
  relative_floor: float = number(1e-8, at_least=0)
  """Damping: fraction of its tensor's mean added to each Fisher entry, >= 0.
  Layers of a transformer share one mean. Where nobody is informed, clients then
  weigh as much as these means, which is not FedAvg's mean."""
  fisher_power: float = number(1.0, at_least=0, at_most=1)
  """p, in [0, 1]: clients are weighed by F^p. 1: the paper's; 0: FedAvg, and no
  Fisher diagonal is computed."""
  fisher_mix: float | None = number(None, at_least=0, at_most=1)
  """q, in [0, 1]: clients are weighed by 1 - q plus q times F^p, divided by its
  mean over the tensor, each layer of a transformer by itself.
  `plain_mean_fraction` mixes means instead, and sends one model more. 0:
  FedAvg. None: by F^p."""
  fisher_cap: float | None = number(
    None, at_least=1, read_with={'fisher_mix': SET}
  )
  """c, >= 1: bound on F^p divided by its mean, and so on a client's influence.
  None: no bound."""
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
    is_plain = self.fisher_power == 0 or self.fisher_mix == 0
    return is_plain or self.plain_mean_fraction == 1


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
  if settings.fisher_granularity == 'tensor':
    expected = [
      ('algorithm.fisher_normalization', 'none'),
      ('algorithm.fisher_mix', None),
    ]
    because = (
      "with fisher_granularity 'tensor', or clients would weigh the same"
    )
    problems += settings_unlike(config, expected, because)
  if config.data.holds_images:
    expected = [('algorithm.plain_mean_tensors', 'none')]
    because = f'with corpus {config.data.corpus!r}, which is no text'
    problems += settings_unlike(config, expected, because)
  return problems


def averaged_axes(
  granularity: str, rank: int, input_axis: int | None, is_stacked: bool
) -> tuple[int, ...]:
  """Returns the axes of a tensor along which F^p is averaged.

  Args:
    granularity: As `FedFishConfig.fisher_granularity`.
    rank: Number of axes of the tensor.
    input_axis: Axis of a matrix with its inputs, that of its outputs being the
      other one of the last two. None: the tensor is no matrix.
    is_stacked: Whether the first axis is that of the layers.
  """
  kept = {0} if is_stacked else set()
  if granularity != 'tensor':
    if granularity == 'element' or input_axis is None:
      return ()
    output_axis = 2 * rank - 3 - input_axis
    kept.add(input_axis if granularity == 'input' else output_axis)
  return tuple(axis for axis in range(rank) if axis not in kept)


def _fisher_shapes(config):
  """Yields the shapes of a tensor and of its F; of F = 1 none is sent."""
  settings, shape = config.algorithm, config.model_shape()
  for (name, sizes), *axes in zip(
    weight_shapes(shape).items(),
    input_axes(shape),
    are_stacked(shape),
    strict=True,
  ):
    is_plain = settings.plain_mean_tensors == 'logits'
    if settings.is_plain_mean or (is_plain and name in LOGITS_TENSORS):
      yield sizes, (0,)
      continue
    averaged = averaged_axes(settings.fisher_granularity, len(sizes), *axes)
    yield sizes, tuple(1 if i in averaged else n for i, n in enumerate(sizes))


def _traffic(config):
  """Counts w F delta and w F; with s also w delta, where F is not 1."""
  num_weights, num_sent = 0, 0
  for sizes, of_fisher in _fisher_shapes(config):
    num_fishers, size = math.prod(of_fisher), math.prod(sizes)
    is_mixed = config.algorithm.plain_mean_fraction and num_fishers
    num_weights += size
    num_sent += size + num_fishers + (size if is_mixed else 0)
  return Traffic(uplink=num_sent / num_weights)


def _fisher_bytes(config):
  """Returns the bytes of F, quantized where every element has its own."""
  shapes = [shape for _, shape in _fisher_shapes(config)]
  if config.algorithm.fisher_granularity == 'element':
    return packed_bytes(shapes, LOGARITHM_BITS)
  return 4 * sum(map(math.prod, shapes))


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
  bytes_beside_delta=_fisher_bytes,
  cost=_cost,
  columns=_columns,
  problems=_problems,
  mass='tff_fedfish.methods.fed_fish.process:client_mass',
  hue='#D55E00',
  hatch='',
)
