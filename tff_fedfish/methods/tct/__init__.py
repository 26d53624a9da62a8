"""TCT: bootstrap a network, then solve its linearisation with SCAFFOLD."""

import dataclasses
import math
from typing import Any, Literal

from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.config_fields import number
from tff_fedfish.methods.method import Method
from tff_fedfish.methods.parts import (
  Column,
  Features,
  FeatureSizes,
  Phase,
  ServerShapes,
  Slot,
  Traffic,
)
from tff_fedfish.methods.settings import (
  UNIT_STEP,
  AlgorithmConfig,
  image_problems,
  settings_unlike,
)
from tff_fedfish.methods.tct import tangent_shapes

_MAX_IMBALANCE = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TctConfig(AlgorithmConfig):
  """Settings of TCT."""

  num_bootstrap_rounds: int = number(100, at_least=0, below=10**8)
  """T1, rounds of FedAvg before the linearisation, >= 0. One more round
  follows, in which clients compute features; all further rounds are convex."""
  num_features: int = number(100_000, at_least=1)
  """p, entries of the gradient of the first logit that are features of an
  image, >= 1; all of them where there are fewer."""
  num_convex_steps: int = number(500, at_least=1)
  """M, full gradient steps of a client in a convex round, >= 1."""
  convex_learning_rate: float = number(5e-5, above=0)
  """eta, the step size of the convex rounds, > 0."""
  loss_scale: Literal['half_mean', 'mean', 'sum'] = 'half_mean'
  """Squared error of a client: half its mean over the rows, which the step size
  of the authors is for, its mean, or its sum."""
  solver: Literal['gram', 'steps'] = 'gram'
  """'gram': all steps at once, in the eigenbasis of the Gram matrix of the
  client's rows, which it keeps. 'steps': one by one; the same up to
  rounding."""
  max_gram_rows: int = number(8192, at_least=0)
  """Rows of a client above which it takes the steps one by one."""


_EXPECTED = (
  *UNIT_STEP,
  # Control variates are means of whole gradients of all clients.
  ('cohorts.cohort_size', None),
  ('client_work.max_delta_norm', None),
  ('client_work.keeps_optimizer_state', False),
  ('client_work.learning_rate_schedule', 'constant'),
  ('client_work.warmup_rounds', 0),
  # Sums and regressions are of rows as they are.
  ('local_privacy.clip_norm', 0.0),
  # It trains clients again, which are fed with other inputs then.
  ('evaluation.barrier_every_num_rounds', 0),
)


def _problems(config):
  if problems := image_problems(config):
    return problems
  return settings_unlike(config, _EXPECTED, "with algorithm.name 'tct'")


def _feature_sizes(config) -> FeatureSizes:
  settings = config.algorithm
  num_candidates = tangent_shapes.num_candidates(config.model_shape())
  max_gram_rows = settings.max_gram_rows * (settings.solver == 'gram')
  return FeatureSizes(min(settings.num_features, num_candidates), max_gram_rows)


def _convex_shapes(config) -> ServerShapes:
  network, shape = weight_shapes(config.model_shape()), config.model_shape()
  size, _ = _feature_sizes(config)
  return ServerShapes(
    tangent_shapes.classifier_shapes(size, shape.num_classes),
    network | {'tct/mean': (size,), 'tct/std': (size,)},
  )


def _convex_models(config) -> float:
  """Returns the size of what a client trains in a convex round, in models."""
  shapes = _convex_shapes(config).trainable.values()
  return sum(map(math.prod, shapes)) / num_parameters(config.model_shape())


def _convex_traffic(config):
  return Traffic(_convex_models(config), _convex_models(config))


def _features_traffic(config):
  """Returns that of n, sum z and sum z^2, and of the weights and statistics."""
  size, _ = _feature_sizes(config)
  num_weights = num_parameters(config.model_shape())
  return Traffic((2 * size + 1) / num_weights, 1 + 2 * size / num_weights)


def _slots(config):
  size = _convex_models(config)
  return (Slot('correction', size), Slot('last_local', size))


def _convex_arguments(config) -> dict[str, Any]:
  settings = config.algorithm
  return {
    'num_steps': settings.num_convex_steps,
    'step_size': settings.convex_learning_rate,
    'loss_scale': settings.loss_scale,
    'solver': settings.solver,
  }


_IMBALANCE = Column(
  'tct/correction_imbalance', ('client_work', 'imbalance'), _MAX_IMBALANCE
)
_DEAD = Column('tct/dead_coordinates', ('client_work', 'num_dead'))
_ACCURACY = Column('tct/train_accuracy', ('client_work', 'train', 'accuracy'))


_SHARED = dict(
  name='tct',
  title='TCT',
  summary=(
    'FedAvg for some rounds; then the network is linearised at its weights, '
    'and SCAFFOLD solves the convex rest. Images only: each client computes '
    'features of its rows once and keeps them.'
  ),
  source=(
    'Yu et al. (2022), "TCT: Convexifying federated learning using '
    'bootstrapped neural tangent kernels"'
  ),
  settings=TctConfig,
)
_MODULE = 'tff_fedfish.methods.tct.process'
_BOOTSTRAP = Method(
  **_SHARED,
  builder='tff_fedfish.methods.fed_avg:build_fed_avg',
  arguments=lambda config: {},
)
_FEATURES = Method(
  **_SHARED,
  builder=f'{_MODULE}_features:build_feature_sums',
  arguments=lambda config: {'num_features': _feature_sizes(config)[0]},
  traffic=_features_traffic,
  columns=lambda config: (_DEAD,),
  features=Features(
    _feature_sizes, 'written', f'{_MODULE}_features:features_of'
  ),
)
_CONVEX = dict(
  **_SHARED,
  traffic=_convex_traffic,
  slots=_slots,
)
_BY_STEPS = Method(
  **_CONVEX,
  builder=f'{_MODULE}:build_convex',
  arguments=_convex_arguments,
  model=f'{_MODULE}_phases:feature_classifier',
  columns=lambda config: (_ACCURACY, _IMBALANCE),
  features=Features(
    _feature_sizes,
    'read',
    shapes=_convex_shapes,
    learning_rate=lambda config: config.algorithm.convex_learning_rate,
  ),
)
_BY_GRAM = dataclasses.replace(
  _BY_STEPS,
  features=_BY_STEPS.features._replace(work=f'{_MODULE}_features:basis_of'),
)


def _phases(config):
  last = config.algorithm.num_bootstrap_rounds
  bootstrap = Phase('bootstrap', 1, last, _BOOTSTRAP)
  convex = _BY_GRAM if config.algorithm.solver == 'gram' else _BY_STEPS
  return (
    bootstrap,
    Phase(
      'features',
      last + 1,
      last + 1,
      _FEATURES,
      f'{_MODULE}_phases:begin_features',
    ),
    Phase('convex', last + 2, None, convex, f'{_MODULE}_phases:begin_convex'),
  )


METHOD = Method(
  **_SHARED,
  # That of the first phase.
  builder=_BOOTSTRAP.builder,
  arguments=_BOOTSTRAP.arguments,
  phases=_phases,
  traffic=_convex_traffic,
  slots=_slots,
  columns=lambda config: (_DEAD, _ACCURACY, _IMBALANCE),
  features=Features(_feature_sizes),
  problems=_problems,
  example='fashion_mnist_tct',
  hue='#117733',
  hatch='..xx',
)
