"""The aggregator slot of FedFish: places the Fisher-weighted mean, and sums."""

import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import fisher
from tff_fedfish.algorithms.slots.finite import zero_if_non_finite


class DeltaAndFisher(NamedTuple):
  """The update of a FedFish client.

  Attributes:
    model_delta: Initial minus final trainable weights.
    fisher_diagonal: Float32, same shapes.
  """

  model_delta: Any
  fisher_diagonal: Any


class FisherWeightedMeanFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregates `DeltaAndFisher` to sum(w F delta) / sum(w F).

  The server sees sums over clients only: two tensors per weight tensor.
  Measurements: `client_weight_sum`; `num_overflowing_clients`, left out because
  w F delta is beyond float32; `zero_mass_fraction`, the share of coordinates in
  which no client has Fisher mass.
  """

  def __init__(self, relative_floor: float):
    """Fixes the floor.

    Args:
      relative_floor: See `fisher.fisher_weighted_terms`; >= 0.

    Raises:
      ValueError: If it is negative.
    """
    if not relative_floor >= 0:
      raise ValueError(
        f'`relative_floor` must be at least 0, found {relative_floor}.'
      )
    self._relative_floor = relative_floor

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Builds the process for updates of `value_type`."""
    relative_floor = self._relative_floor

    @tff.tensorflow.computation(value_type, weight_type)
    @tf.function
    def to_terms(update, client_weight):
      terms = fisher.fisher_weighted_terms(
        update.model_delta,
        update.fisher_diagonal,
        client_weight,
        relative_floor=relative_floor,
      )
      # Of a finite delta and a finite Fisher the product may still overflow.
      terms, overflows = zero_if_non_finite(terms)
      return terms, tf.cast(overflows, tf.int32)

    terms_type = to_terms.type_signature.result[0]

    @tff.tensorflow.computation(terms_type)
    @tf.function
    def to_mean(sums):
      weighted_delta_sum, fisher_mass = sums
      return fisher.fisher_weighted_mean(weighted_delta_sum, fisher_mass)

    @tff.tensorflow.computation(terms_type)
    @tf.function
    def to_zero_mass_fraction(sums):
      _, fisher_mass = sums
      tensors = tf.nest.flatten(fisher_mass)
      num_zeros = tf.add_n(
        [tf.reduce_sum(tf.cast(tf.equal(t, 0), tf.float32)) for t in tensors]
      )
      return num_zeros / float(sum(t.shape.num_elements() for t in tensors))

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, update, client_weight):
      terms = tff.federated_map(to_terms, (update, client_weight))
      sums = tff.federated_sum(terms[0])
      measurements = tff.federated_zip(
        collections.OrderedDict(
          client_weight_sum=tff.federated_sum(client_weight),
          num_overflowing_clients=tff.federated_sum(terms[1]),
          zero_mass_fraction=tff.federated_map(to_zero_mass_fraction, sums),
        )
      )
      return tff.templates.MeasuredProcessOutput(
        state, tff.federated_map(to_mean, sums), measurements
      )

    return tff.templates.AggregationProcess(initialize, next_fn)
