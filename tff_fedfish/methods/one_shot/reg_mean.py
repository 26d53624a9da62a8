"""RegMean: dense layers that fit the clients' outputs by least squares."""

import dataclasses
import math

from models.model_shapes import num_parameters
from tff_fedfish.config_fields import number
from tff_fedfish.methods.one_shot import (
  OneShotConfig,
  image_problems,
  one_shot_method,
  upload_sizes,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegMeanConfig(OneShotConfig):
  """Settings of RegMean."""

  shrinkage: float | None = number(None, at_least=0, at_most=1)
  """Factor of the Gram matrices' entries off the diagonal, in [0, 1]. None: the
  one of 0.1 and 0.9 that scores better on the validation rows."""


def _solve_models(config, unused_num_clients):
  """Returns models: of an upload, of sums in float64, and of the inverse."""
  shape, upload = config.model_shape(), METHOD.upload(config)
  grams = upload_sizes.summary_shapes(shape, upload).values()
  sizes = [*map(math.prod, grams)]
  return 9 + (2 * sum(sizes) + 12 * max(sizes)) / num_parameters(shape)


def _problems(config):
  algorithm, problems = config.algorithm, image_problems(config)
  if problems or algorithm.shrinkage is not None:
    return problems
  if algorithm.num_validation_rows:
    return []
  return [
    '`config.algorithm.shrinkage` must be given, such as 0.9, with '
    'num_validation_rows 0, which leaves nothing to choose it by, found None'
  ]


METHOD = one_shot_method(
  name='reg_mean',
  title='RegMean',
  summary=(
    'One-shot, images only: kernels of dense layers minimize the squared '
    "distance to every client's outputs on its inputs; all else is averaged."
  ),
  source=(
    'Jin, Ren, Preotiuc-Pietro and Cheng (2023), "Dataless knowledge fusion by '
    'merging weights of language models"'
  ),
  settings=RegMeanConfig,
  summary_of=lambda config: 'gram',
  problems=_problems,
  solver='tff_fedfish.methods.one_shot.reg_mean_solve:solve',
  solve_models=_solve_models,
  hue='#999933',
  hatch='--',
)
