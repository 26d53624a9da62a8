"""The aggregator slot of FedFish: places the Fisher-weighted mean, and sums."""

import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import fisher
from tff_fedfish.algorithms.slots.bounds import zero_if_non_finite
from tff_fedfish.errors import require


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

  With `max_mass_ratio` the state holds `mean_masses`, float32 [tensors]: the
  mean mass of the last round's clients with data in each tensor, after the
  bound. It is broadcast to the clients of the next round, and the clients that
  it bounds in any tensor are measured as `num_bounded_clients`.
  """

  def __init__(
    self, relative_floor: float, max_mass_ratio: float | None = None
  ):
    """Fixes the floor and the bound.

    Args:
      relative_floor: See `fisher.fisher_weighted_terms`; >= 0.
      max_mass_ratio: See `fisher.bounded_weights`; >= 1. None: no bound.

    Raises:
      ValueError: If one of them is below that.
    """
    require(relative_floor >= 0, 'relative_floor', 'at least 0', relative_floor)
    is_bound = max_mass_ratio is None or max_mass_ratio >= 1
    wanted = 'at least 1 or None'
    require(is_bound, 'max_mass_ratio', wanted, max_mass_ratio)
    self._relative_floor = relative_floor
    self._max_mass_ratio = max_mass_ratio

  def client_mass(
    self, update: DeltaAndFisher, client_weight: tf.Tensor, state: Any
  ) -> Any:
    """Returns w F, by which the server weighs a client's delta.

    Floor and bound are included; it is 0 where the client's terms overflow. The
    state is that of the aggregation process before the round.
    """
    (_, mass), *_ = self._terms(update, client_weight, state)
    return mass

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Builds the process for updates of `value_type`."""
    is_bounded = self._max_mass_ratio is not None
    diagonal_type = value_type.fisher_diagonal
    num_tensors = len(
      tf.nest.flatten(tff.types.type_to_tf_tensor_specs(diagonal_type))
    )

    @tff.tensorflow.computation
    def initial_state():
      # Round 1 has no round before it, and no bound.
      return collections.OrderedDict(mean_masses=tf.zeros([num_tensors]))

    @tff.federated_computation
    def initialize():
      if is_bounded:
        return tff.federated_eval(initial_state, tff.SERVER)
      return tff.federated_value((), tff.SERVER)

    state_type = initialize.type_signature.result.member

    @tff.tensorflow.computation(value_type, weight_type, state_type)
    @tf.function(autograph=False)
    def to_terms(update, client_weight, state):
      terms, masses, exceeds, overflows = self._terms(
        update, client_weight, state
      )
      counts = collections.OrderedDict(
        num_overflowing_clients=tf.cast(overflows, tf.int32)
      )
      if is_bounded:
        # Clients with data only.
        has_mass = tf.logical_and(client_weight > 0, tf.logical_not(overflows))
        counts['num_bounded_clients'] = tf.cast(
          tf.logical_and(has_mass, tf.reduce_any(exceeds)), tf.int32
        )
        masses = (masses, tf.cast(has_mass, tf.float32))
      return terms, counts, masses

    terms_type, _, masses_type = to_terms.type_signature.result

    @tff.tensorflow.computation(terms_type)
    @tf.function(autograph=False)
    def to_mean(sums):
      weighted_delta_sum, fisher_mass = sums
      return fisher.fisher_weighted_mean(weighted_delta_sum, fisher_mass)

    @tff.tensorflow.computation(terms_type)
    @tf.function(autograph=False)
    def to_zero_mass_fraction(sums):
      _, fisher_mass = sums
      tensors = tf.nest.flatten(fisher_mass)
      num_zeros = tf.add_n(
        [tf.reduce_sum(tf.cast(tf.equal(t, 0), tf.float32)) for t in tensors]
      )
      return num_zeros / float(sum(t.shape.num_elements() for t in tensors))

    if is_bounded:

      @tff.tensorflow.computation(state_type, masses_type)
      def next_state(state, sums):
        return collections.OrderedDict(
          mean_masses=fisher.next_mean_masses(state['mean_masses'], *sums)
        )

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, update, client_weight):
      sent = tff.federated_map(
        to_terms, (update, client_weight, tff.federated_broadcast(state))
      )
      sums = tff.federated_sum(sent[0])
      counts = tff.federated_sum(sent[1])
      measurements = collections.OrderedDict(
        client_weight_sum=tff.federated_sum(client_weight),
        num_overflowing_clients=counts.num_overflowing_clients,
        zero_mass_fraction=tff.federated_map(to_zero_mass_fraction, sums),
      )
      if is_bounded:
        measurements['num_bounded_clients'] = counts.num_bounded_clients
        state = tff.federated_map(
          next_state, (state, tff.federated_sum(sent[2]))
        )
      return tff.templates.MeasuredProcessOutput(
        state,
        tff.federated_map(to_mean, sums),
        tff.federated_zip(measurements),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)

  def _terms(self, update, client_weight, state):
    """Returns (w F delta, w F), masses, what exceeds the bound, overflow.

    The terms are 0 if they overflow. Masses and bounds are those of each
    tensor, () without a bound.
    """
    weights, masses, exceeds = client_weight, (), ()
    if self._max_mass_ratio is not None:
      weights, masses, exceeds = fisher.bounded_weights(
        update.fisher_diagonal,
        client_weight,
        state['mean_masses'],
        self._max_mass_ratio,
      )
    terms = fisher.fisher_weighted_terms(
      update.model_delta,
      update.fisher_diagonal,
      weights,
      relative_floor=self._relative_floor,
    )
    # A mass may overflow, too: it is a sum over a tensor.
    (terms, masses), overflows = zero_if_non_finite((terms, masses))
    return terms, masses, exceeds, overflows
