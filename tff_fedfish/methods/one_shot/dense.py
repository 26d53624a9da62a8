"""DENSE: distills the clients' ensemble on images that a generator makes."""

import dataclasses
import math

from models.model_shapes import num_parameters
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


def _solve_models(config, num_clients):
  """Returns the clients' models and the student's, and what images take."""
  shape = config.model_shape()
  height, width, _ = shape.image_shape
  # Values of the generator's layers per image: 128 channels on the small map,
  # 128 on its double, 64 at full size; some five copies. Classifiers' outputs
  # are there with their gradients.
  values = 5 * (-(-height // 4)) * (-(-width // 4)) * (128 + 4 * 128 + 16 * 64)
  values += 2 * (num_clients + 1) * shape.num_convolved()
  # The pool of images, and those of an epoch in their order.
  pool = 3 * config.algorithm.num_outer_epochs * math.prod(shape.image_shape)
  return num_clients + 8 + 256 * (values + pool) / num_parameters(shape)


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
  solver='tff_fedfish.methods.one_shot.dense_solve:solve',
  solve_models=_solve_models,
  hue='#AA4499',
  hatch='..',
)
