"""FedFisher: the server minimizes the clients' quadratic approximations."""

import dataclasses
import math
from typing import Literal

from models.layers import layers_of
from models.model_shapes import num_parameters
from tff_fedfish.config_fields import number
from tff_fedfish.methods.one_shot import (
  OneShotConfig,
  curvature_shapes,
  one_shot_method,
  upload_sizes,
)
from tff_fedfish.printing import format_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFisherConfig(OneShotConfig):
  """Settings of FedFisher."""

  curvature: Literal['kfac', 'diagonal'] = 'kfac'
  """Approximation of a client's Fisher: Kronecker factors of each layer, of
  images only, or the diagonal."""
  solver: Literal['adam', 'conjugate_gradient', 'closed_form'] = 'adam'
  """Minimizer. 'adam': early-stopped steps, as published. 'conjugate_gradient':
  the exact minimum closest to the average, layer by layer. 'closed_form': the
  same for a diagonal."""
  num_solver_steps: int = number(2000, at_least=1)
  """Steps of 'adam', or at most so many of 'conjugate_gradient' per layer, >=
  1."""
  solver_learning_rate: float = number(0.01, above=0)
  """Learning rate of 'adam', > 0."""
  solver_check_every: int = number(100, at_least=1)
  """Steps of 'adam' between two scores on the validation rows, >= 1. The best
  are kept."""
  tries_average: bool = True
  """Whether the average of the models is kept where it scores best. The
  published code does not try it."""
  solve_memory_bytes: int = number(8 * 2**30, at_least=1)
  """Largest size of the factors that 'adam' with K-FAC may hold at a time.
  Unit: bytes, >= 1."""


def _solve_models(config, num_clients):
  """Returns the models that a solve holds; factors count by their entries."""
  upload, shape = METHOD.upload(config), config.model_shape()
  if upload.summary == 'diagonal':
    # Both sums, the average, the best, and the state of a step before and after
    # it: three models of 'adam', four of 'conjugate_gradient'.
    return {'closed_form': 10, 'adam': 11}.get(config.algorithm.solver, 14)
  factors, beside = [], []
  for layer in layers_of(shape):
    sizes = [*map(math.prod, curvature_shapes.summary_specs([layer]).values())]
    factors.append(sum(sizes))
    # The largest factor is there twice when it is read; A V and A V G later.
    beside.append(max(*sizes, 2 * layer.num_rows * layer.fan_out))
  if config.algorithm.solver == 'adam':
    held = num_parameters(shape) * upload_sizes.summary_models(shape, upload)
    return 9 + num_clients * (held + max(beside)) / num_parameters(shape)
  held = max(map(sum, zip(factors, beside, strict=True)))
  return 6 + num_clients * held / num_parameters(shape)


def _problems(config):
  algorithm, problems = config.algorithm, []
  if algorithm.curvature == 'kfac' and not config.data.holds_images:
    return [
      "`config.algorithm.curvature` must be 'diagonal' with a corpus of text, "
      "found 'kfac'"
    ]
  if algorithm.solver == 'closed_form' and algorithm.curvature == 'kfac':
    problems.append(
      "`config.algorithm.curvature` must be 'diagonal' with solver "
      "'closed_form', found 'kfac'"
    )
  if (algorithm.solver, algorithm.curvature) == ('adam', 'kfac'):
    num_clients = config.cohort_size or config.partition.num_clients or 1
    num_bytes = int(
      4
      * num_parameters(config.model_shape())
      * num_clients
      * upload_sizes.summary_models(config.model_shape(), METHOD.upload(config))
    )
    if num_bytes > algorithm.solve_memory_bytes:
      problems.append(
        "`config.algorithm.solver` 'adam' holds the factors of "
        f'{num_clients} clients, {format_bytes(num_bytes)}, beyond '
        '`config.algorithm.solve_memory_bytes`, '
        f'{algorithm.solve_memory_bytes}; use conjugate_gradient, which goes '
        'layer by layer, or raise the limit'
      )
  return problems


METHOD = one_shot_method(
  name='fed_fisher',
  title='FedFisher',
  summary=(
    'One-shot: clients upload weights and their Fisher, as Kronecker factors '
    'or a diagonal; the server minimizes the sum of the quadratics.'
  ),
  source=(
    'Jhunjhunwala, Wang and Joshi (2024), "FedFisher: Leveraging Fisher '
    'information for one-shot federated learning"'
  ),
  settings=FedFisherConfig,
  summary_of=lambda config: config.algorithm.curvature,
  problems=_problems,
  solver='tff_fedfish.methods.one_shot.fed_fisher_solve:solve',
  solve_models=_solve_models,
  hue='#882255',
  hatch='**',
)
