"""The server's mean of the deltas, with a weight for each coordinate.

  g = s sum_i w_i delta_i / sum_i w_i + (1 - s) sum_i m_i delta_i / sum_i m_i
  m_i = w_i (a_i + r mean(a_i))

| letter | meaning |
|---|---|
| delta_i, a_i | update of client i: its delta, and weights of coordinates |
| w_i | client weight |
| r | `relative_floor`; the mean is over the tensor |
| s | `plain_mean_fraction` |

An a_i whose axis has length 1 holds for all entries along that axis. A tensor
whose a_i is () takes the first mean only; if all are, g is FedAvg's.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds.finite import zero_if_non_finite


class Weighted(NamedTuple):
  """Update of a client.

  Attributes:
    delta: Initial minus final trainable weights, bounded.
    a: Weights of coordinates, float32 >= 0: a tensor or () for each of `delta`.
  """

  delta: tuple[tf.Tensor, ...]
  a: tuple[Any, ...]


class Terms(NamedTuple):
  """Summands of a client for one tensor; () where g does not need them."""

  plain: Any = ()
  """w delta."""
  weighted: Any = ()
  """m delta."""
  mass: Any = ()
  """m."""


@dataclasses.dataclass(frozen=True)
class WeightedMean(tff.aggregators.WeightedAggregationFactory):
  """Aggregates `Weighted` to g, 0 where the weights sum to 0.

  Measurements: `client_weight_sum`; `num_overflowing_clients`, left out because
  a term is beyond float32.
  """

  relative_floor: float = 0.0
  plain_mean_fraction: float = 0.0

  def terms(self, update: Weighted, weight: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """CLIENTS: returns (Terms by tensor, w), all 0 if they overflow; whether.

    The floor gives a coordinate mass in which no client has a gradient: client
    i weighs w_i mean(a_i) there.
    """

    def of_tensor(delta, a):
      plain = tf.cast(weight, delta.dtype) * delta
      if isinstance(a, tuple):
        return Terms(plain)
      mass = a + self.relative_floor * tf.reduce_mean(a)
      mass = tf.cast(weight * mass, delta.dtype)
      return Terms(
        plain if self.plain_mean_fraction else (), mass * delta, mass
      )

    terms = tuple(map(of_tensor, update.delta, update.a))
    return zero_if_non_finite((terms, weight))

  def mean(self, sums: Any) -> tuple[tf.Tensor, ...]:
    """SERVER: returns g of the sums of the clients' terms."""
    terms, weight = sums
    s = self.plain_mean_fraction

    def of_tensor(total):
      if isinstance(total.mass, tuple):
        return _quotient(total.plain, weight)
      g = tf.math.divide_no_nan(total.weighted, total.mass)
      return s * _quotient(total.plain, weight) + (1.0 - s) * g if s else g

    return tuple(map(of_tensor, terms))

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Builds the process for updates of `value_type`."""

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation(value_type, weight_type)
    @tf.function(autograph=False)
    def terms(update, weight):
      found, overflows = self.terms(update, weight)
      return found, tf.cast(overflows, tf.int32)

    @tff.tensorflow.computation(terms.type_signature.result[0])
    @tf.function(autograph=False)
    def mean(sums):
      return self.mean(sums)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, update, weight):
      sent, overflows = tff.federated_map(terms, (update, weight))
      measurements = collections.OrderedDict(
        client_weight_sum=tff.federated_sum(weight),
        num_overflowing_clients=tff.federated_sum(overflows),
      )
      return tff.templates.MeasuredProcessOutput(
        state,
        tff.federated_map(mean, tff.federated_sum(sent)),
        tff.federated_zip(measurements),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


def _quotient(total, weight):
  return tf.math.divide_no_nan(total, tf.cast(weight, total.dtype))
