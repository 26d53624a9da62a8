"""SCAFFOLD: control variates take the drift out of local steps."""

import dataclasses
from typing import Literal

from tff_fedfish.methods.method import ClientCost, Method, Slot, Traffic
from tff_fedfish.methods.settings import (
  UNIT_STEP,
  AlgorithmConfig,
  settings_unlike,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaffoldConfig(AlgorithmConfig):
  """Settings of SCAFFOLD."""

  exchange: Literal['two_models', 'one_model'] = 'two_models'
  """Messages of a round. 'two_models': model and control variate, each way, for
  any cohort. 'one_model': the model only; every client must take part in every
  round, with the same weight and number of local steps, and the server takes
  the mean."""


_PLAIN_SGD = (
  ('client_work.optimizer', 'sgd'),
  ('client_work.momentum', 0.0),
  ('client_work.max_gradient_norm', None),
  ('client_work.keeps_optimizer_state', False),
  ('client_work.max_delta_norm', None),
)
_MEAN_OF_ALL = (
  ('client_work.learning_rate_schedule', 'constant'),
  ('client_work.warmup_rounds', 0),
  # Weights by rows change with the rows that a round takes.
  ('algorithm.client_weighting', 'uniform'),
  ('cohorts.cohort_size', None),
  *UNIT_STEP,
)


def _problems(config):
  because = "with algorithm.name 'scaffold'"
  problems = settings_unlike(config, _PLAIN_SGD, because)
  if _sends_one_model(config):
    because = "with algorithm.exchange 'one_model'"
    problems += settings_unlike(config, _MEAN_OF_ALL, because)
    if config.client_work.num_local_steps is None:
      problems.append(
        f'`config.client_work.num_local_steps` is required {because}'
      )
  return problems


def _sends_one_model(config):
  return config.algorithm.exchange == 'one_model'


def _slots(config):
  if _sends_one_model(config):
    return (Slot('correction', 1), Slot('last_local', 1))
  return (Slot('control_variate', 1),)


def _traffic(config):
  return Traffic() if _sends_one_model(config) else Traffic(2, 2)


def _cost(config):
  if _sends_one_model(config):
    # The correction and the corrected gradients.
    return ClientCost(models_in_training=2, flops_per_weight=5)
  # The server's variate, too.
  return ClientCost(models_summed=2, models_in_training=3, flops_per_weight=10)


METHOD = Method(
  name='scaffold',
  title='SCAFFOLD',
  summary=(
    'FedAvg whose clients correct every gradient by the difference between '
    "their own mean gradient and that of all clients. Clients keep a model's "
    'worth of state.'
  ),
  source=(
    'Karimireddy et al. (2020), "SCAFFOLD: Stochastic controlled averaging for '
    'federated learning"; with one model Yu et al. (2022), "TCT"'
  ),
  settings=ScaffoldConfig,
  builder='tff_fedfish.algorithms.scaffold:build_scaffold',
  traffic=_traffic,
  cost=_cost,
  slots=_slots,
  takes_num_clients=True,
  requires_all_clients=_sends_one_model,
  problems=_problems,
  sends='weighted model deltas and changes of control variates',
  hue='#56B4E9',
  hatch='++++',
)
