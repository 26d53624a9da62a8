"""A method of one's own: deltas weighted by their magnitude.

  g[j] = sum_i w_i |d_i[j]|^p d_i[j] / sum_i w_i |d_i[j]|^p

With p = 0 it is FedAvg. Clients send both sums: two models.
"""

import dataclasses

from tff_fedfish.methods import (
  AlgorithmConfig,
  Column,
  Method,
  Traffic,
  number,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MagnitudeMeanConfig(AlgorithmConfig):
  """Settings of the magnitude-weighted mean."""

  magnitude_power: float = number(1.0, at_least=0)
  """Exponent p of a delta's magnitude in its weight, >= 0. 0 is FedAvg."""


def build_magnitude_mean(model, *, magnitude_power=1.0, **training):
  """Builds the method; `training` goes to `compose`."""
  from tff_fedfish.methods.fed_fish.process import DeltaAndFisher, FisherMean
  from tff_fedfish.rounds.compose import compose

  def make_update(client):
    delta, counts = client.model_delta()
    return DeltaAndFisher(delta, _magnitudes(delta, magnitude_power)), counts

  return compose(
    model,
    make_update=make_update,
    aggregation_factory=FisherMean(),
    **training,
  )


def client_mass(config):
  """Returns w |d|^p, by which the server weighs a delta; and no plain mean."""
  power = config.algorithm.magnitude_power

  def mass(update, client_weight, aggregator_state):
    del aggregator_state
    magnitudes = _magnitudes(update.model_delta, power)
    return [client_weight * magnitude for magnitude in magnitudes]

  return mass, 0.0


def _magnitudes(delta, power):
  import tensorflow as tf

  return tf.nest.map_structure(lambda d: tf.abs(d) ** power, delta)


METHOD = Method(
  name='magnitude_mean',
  title='Magnitude mean',
  summary='Mean of the model deltas, weighted by their magnitude.',
  source='CONTRIBUTING.md',
  settings=MagnitudeMeanConfig,
  builder='own_methods.magnitude_mean:build_magnitude_mean',
  traffic=lambda config: Traffic(uplink=2),
  columns=lambda config: (
    Column('train/num_overflows', ('aggregator', 'num_overflowing_clients')),
  ),
  mass='own_methods.magnitude_mean:client_mass',
)
