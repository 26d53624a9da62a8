"""FedFomo: clients mix the models of others by what these do for them."""

import dataclasses

from tff_fedfish.config_fields import number
from tff_fedfish.methods.method import (
  ClientCost,
  Column,
  Downloads,
  Method,
  PersonalModels,
  Slot,
  Traffic,
)
from tff_fedfish.methods.personal import personal_problems
from tff_fedfish.methods.settings import (
  AlgorithmConfig,
  settings_unlike,
)

_COLUMN = 'train/num_downloads'


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedFomoConfig(AlgorithmConfig):
  """Settings of FedFomo: what clients download, and how they mix it."""

  num_downloads: int = number(5, at_least=1, below=4096)
  """Models of other clients that a client is sent in a round, at most, >= 1. It
  always weighs its own last model, too."""
  epsilon: float = number(0.3, at_least=0, at_most=1)
  """Probability in round 1 that a download is drawn at random, in [0, 1]; else
  it is the one with the highest affinity."""
  epsilon_decay: float = number(0.05, at_least=0, at_most=1)
  """Decrease of that probability per round, in [0, 1]."""


_EXPECTED = (
  # A client begins with other weights than those that its moments are of.
  ('client_work.keeps_optimizer_state', False),
)


def _problems(config):
  because = "with algorithm.name 'fed_fomo'"
  problems = personal_problems(config)
  return problems + settings_unlike(config, _EXPECTED, because)


def _downloads(config):
  settings = config.algorithm
  return Downloads(
    settings.num_downloads,
    settings.epsilon,
    settings.epsilon_decay,
  )


METHOD = Method(
  name='fed_fomo',
  title='FedFomo',
  summary=(
    'Every client has a model of its own, which it moves towards models of '
    'other clients by how much each lowers its validation loss.'
  ),
  source=(
    'Zhang et al. (2021), "Personalized federated learning with first order '
    'model optimization"'
  ),
  settings=FedFomoConfig,
  builder='tff_fedfish.algorithms.fed_fomo:build_fed_fomo',
  arguments=lambda config: {},
  # The most that is sent; metrics.csv counts what was.
  traffic=lambda config: Traffic(1, config.algorithm.num_downloads),
  # The sum of the differences, and the candidate.
  cost=lambda config: ClientCost(models_in_training=2),
  # The affinity has one float per client.
  slots=lambda config: (
    Slot('model', 1),
    Slot('baseline', 1),
    Slot('affinity', 0),
  ),
  takes_num_clients=True,
  columns=lambda config: (
    Column(_COLUMN, ('client_work', 'clients', 'num_downloads')),
  ),
  downloads_column=_COLUMN,
  personal=lambda config: PersonalModels(
    validates=True, downloads=_downloads(config)
  ),
  problems=_problems,
  sends="clients' models, one at a time",
  example='mnist_personal',
  hue='#332288',
  hatch='\\\\\\\\',
)
