"""TCT: bootstrap a network, then solve its linearization with SCAFFOLD.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels", algorithms 1 and 2, for classifiers of images. A run
has three phases:

  bootstrap  T1 rounds of FedAvg
  features   One round. Every client computes features z of its rows from the
             network's weights, and keeps them; their mean and standard
             deviation over all clients follow from sums (`features.py`).
  convex     All further rounds: SCAFFOLD regresses the classes on the
             normalized features (`regression.py`, `process.py`).

`process.py` has the learning processes of the last two phases, and `phases.py`
what a run does between phases.
"""

import dataclasses
import math

from models.layers import layers_of
from models.model_shapes import num_parameters, weight_shapes
from tff_fedfish.fields import number
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

_MAX_IMBALANCE = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class TctConfig(AlgorithmConfig):
  """Settings of TCT."""

  num_bootstrap_rounds: int = number(100, at_least=0, below=10**8)
  """T1, rounds of FedAvg before the linearization, >= 0. One more round
  follows, in which clients compute features; all further rounds are convex."""
  num_features: int = number(100_000, at_least=1)
  """p, entries of the gradient of the first logit that are features of an
  image, >= 1; all of them where there are fewer."""
  num_convex_steps: int = number(500, at_least=1)
  """M, full gradient steps of a client in a convex round, >= 1."""
  convex_learning_rate: float = number(5e-5, above=0)
  """eta, the step size of the convex rounds, > 0."""
  max_gram_rows: int = number(8192, at_least=0)
  """Rows of a client up to which it takes the steps of a round at once, in the
  eigenbasis of the Gram matrix of its rows, which it keeps. A client with more
  rows takes them one by one; with 0 all clients do."""


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


def num_candidates(shape) -> int:
  """Returns the weights of an `ImageModelConfig` that reach the first logit."""
  *_, head = layers_of(shape)
  return num_parameters(shape) - (head.fan_out - 1) * head.num_rows


def _feature_sizes(config):
  settings = config.algorithm
  num_features = num_candidates(config.model_shape())
  return FeatureSizes(
    min(settings.num_features, num_features), settings.max_gram_rows
  )


def _convex_shapes(config):
  network, shape = weight_shapes(config.model_shape()), config.model_shape()
  size, _ = _feature_sizes(config)
  return ServerShapes(
    {
      'tct/kernel': (size, shape.num_classes),
      'tct/bias': (shape.num_classes,),
    },
    network | {'tct/mean': (size,), 'tct/std': (size,)},
  )


def _convex_models(config):
  """Returns the size of V, in models."""
  shapes = _convex_shapes(config).trainable.values()
  return sum(map(math.prod, shapes)) / num_parameters(config.model_shape())


def _convex_traffic(config):
  return Traffic(_convex_models(config), _convex_models(config))


def _features_traffic(config):
  """Returns that of n, sum z and sum z^2, and of weights, mean and std."""
  size, _ = _feature_sizes(config)
  num_weights = num_parameters(config.model_shape())
  return Traffic((2 * size + 1) / num_weights, 1 + 2 * size / num_weights)


def _slots(config):
  size = _convex_models(config)
  return (Slot('correction', size), Slot('last_local', size))


_IMBALANCE = Column(
  'tct/correction_imbalance', ('client_work', 'imbalance'), _MAX_IMBALANCE
)
_DEAD = Column('tct/dead_coordinates', ('client_work', 'num_dead'))
_ACCURACY = Column('tct/train_accuracy', ('client_work', 'train', 'accuracy'))

_SHARED = dict(
  name='tct',
  title='TCT',
  summary=(
    'FedAvg for some rounds; then the network is linearized at its weights, '
    'and SCAFFOLD solves the convex rest. Images only: each client computes '
    'features of its rows once and keeps them.'
  ),
  source=(
    'Yu et al. (2022), "TCT: Convexifying federated learning using '
    'bootstrapped neural tangent kernels"'
  ),
  settings=TctConfig,
)
_PROCESS = 'tff_fedfish.methods.tct.process'
_PHASES = 'tff_fedfish.methods.tct.phases'

_BOOTSTRAP = Method(
  **_SHARED,
  builder='tff_fedfish.methods.fed_avg:build_fed_avg',
  arguments=lambda config: {},
)
_FEATURES = Method(
  **_SHARED,
  builder=f'{_PROCESS}:build_feature_sums',
  arguments=lambda config: {'num_features': _feature_sizes(config)[0]},
  traffic=_features_traffic,
  columns=lambda config: (_DEAD,),
  features=Features(_feature_sizes, 'written', f'{_PHASES}:features_of'),
)
_CONVEX = Method(
  **_SHARED,
  builder=f'{_PROCESS}:build_convex',
  arguments=lambda config: {
    'num_steps': config.algorithm.num_convex_steps,
    'step_size': config.algorithm.convex_learning_rate,
  },
  model=f'{_PHASES}:feature_classifier',
  traffic=_convex_traffic,
  slots=_slots,
  columns=lambda config: (_ACCURACY, _IMBALANCE),
  features=Features(
    _feature_sizes,
    'read',
    f'{_PHASES}:basis_of',
    shapes=_convex_shapes,
    learning_rate=lambda config: config.algorithm.convex_learning_rate,
  ),
)


def _phases(config):
  last, begin = config.algorithm.num_bootstrap_rounds, f'{_PHASES}:begin'
  return (
    Phase('bootstrap', 1, last, _BOOTSTRAP),
    Phase('features', last + 1, last + 1, _FEATURES, f'{begin}_features'),
    Phase('convex', last + 2, None, _CONVEX, f'{begin}_convex'),
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
