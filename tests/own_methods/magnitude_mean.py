"""A method of one's own: deltas weighted by their magnitude.

  g[j] = sum_i w_i |d_i[j]|^p d_i[j] / sum_i w_i |d_i[j]|^p

With p = 0 it is FedAvg. Clients send both sums: two models.
"""

import dataclasses

from tff_fedfish.methods import (
  Column,
  Method,
  Traffic,
  number,
  tf,
  weighted_mean,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MagnitudeMean(Method):
  """Mean of the model deltas, weighted by their magnitude."""

  title = 'Magnitude mean'
  source = 'CONTRIBUTING.md'
  weighs_coordinates = True

  magnitude_power: float = number(1.0, at_least=0)
  """Exponent p of a delta's magnitude in its weight, >= 0. 0 is FedAvg."""

  def make_update(self, client):
    delta, counts = client.model_delta()
    magnitudes = tuple(tf.abs(d) ** self.magnitude_power for d in delta)
    return weighted_mean.Weighted(delta, magnitudes), counts

  def aggregation(self):
    return weighted_mean.WeightedMean()

  def traffic(self, config):
    return Traffic(uplink=2)

  def columns(self, config):
    path = 'aggregator', 'num_overflowing_clients'
    return (Column('train/num_overflows', path),)
