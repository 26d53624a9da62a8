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
    if not relative_floor >= 0:
      raise ValueError(
        f'`relative_floor` must be at least 0, found {relative_floor}.'
      )
    if max_mass_ratio is not None and not max_mass_ratio >= 1:
      raise ValueError(
        '`max_mass_ratio` must be at least 1 or None, found '
        f'{max_mass_ratio!r}.'
      )
    self._relative_floor = relative_floor
    self._max_mass_ratio = max_mass_ratio

  def client_mass(
    self, update: DeltaAndFisher, client_weight: tf.Tensor, state: Any
  ) -> Any:
    """Returns w F, by which the server weighs a client's delta.

    Args:
      update: The client's.
      client_weight: Scalar float32, w_i; 0 for a client that is left out.
      state: That of the aggregation process before the round.

    Returns:
      Tensors like `update.model_delta`, floor and bound included; 0 where the
      client's terms overflow.
    """
    if self._max_mass_ratio is None:
      (_, mass), _ = _terms(update, client_weight, self._relative_floor)
    else:
      (_, mass), *_ = _bounded_terms(
        update,
        client_weight,
        state['mean_masses'],
        self._relative_floor,
        self._max_mass_ratio,
      )
    return mass

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """Builds the process for updates of `value_type`."""
    relative_floor = self._relative_floor
    bound = self._max_mass_ratio and _MassBound(
      value_type, weight_type, relative_floor, self._max_mass_ratio
    )

    @tff.tensorflow.computation(value_type, weight_type)
    @tf.function
    def to_terms(update, client_weight):
      terms, overflows = _terms(update, client_weight, relative_floor)
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
      if bound:
        return tff.federated_eval(bound.initial_state, tff.SERVER)
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, update, client_weight):
      bound_measurements = {}
      if bound:
        terms = tff.federated_map(
          bound.to_terms,
          (update, client_weight, tff.federated_broadcast(state)),
        )
        bound_measurements['num_bounded_clients'] = tff.federated_sum(terms[2])
        state = tff.federated_map(
          bound.next_state, (state, tff.federated_sum(terms[3]))
        )
      else:
        terms = tff.federated_map(to_terms, (update, client_weight))
      sums = tff.federated_sum(terms[0])
      measurements = tff.federated_zip(
        collections.OrderedDict(
          client_weight_sum=tff.federated_sum(client_weight),
          num_overflowing_clients=tff.federated_sum(terms[1]),
          zero_mass_fraction=tff.federated_map(to_zero_mass_fraction, sums),
          **bound_measurements,
        )
      )
      return tff.templates.MeasuredProcessOutput(
        state, tff.federated_map(to_mean, sums), measurements
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


class _MassBound:
  """The computations of `max_mass_ratio`, which needs a state."""

  def __init__(self, value_type, weight_type, relative_floor, max_mass_ratio):
    num_tensors = len(
      tf.nest.flatten(
        tff.types.type_to_tf_tensor_specs(value_type.fisher_diagonal)
      )
    )

    @tff.tensorflow.computation
    def initial_state():
      # Round 1 has no round before it, and no bound.
      return collections.OrderedDict(mean_masses=tf.zeros([num_tensors]))

    state_type = initial_state.type_signature.result

    @tff.tensorflow.computation(value_type, weight_type, state_type)
    @tf.function
    def to_terms(update, client_weight, state):
      terms, masses, is_bounded, overflows = _bounded_terms(
        update,
        client_weight,
        state['mean_masses'],
        relative_floor,
        max_mass_ratio,
      )
      counts = tf.logical_and(client_weight > 0, tf.logical_not(overflows))
      is_counted = tf.logical_and(counts, tf.reduce_any(is_bounded))
      return (
        terms,
        tf.cast(overflows, tf.int32),
        tf.cast(is_counted, tf.int32),
        (masses, tf.cast(counts, tf.float32)),
      )

    @tff.tensorflow.computation(state_type, to_terms.type_signature.result[3])
    def next_state(state, sums):
      return collections.OrderedDict(
        mean_masses=fisher.next_mean_masses(state['mean_masses'], *sums)
      )

    self.initial_state = initial_state
    self.to_terms = to_terms
    self.next_state = next_state


def _terms(update, client_weight, relative_floor):
  """Returns (w F delta, w F), 0 if they overflow, and whether they do."""
  return zero_if_non_finite(
    _weighted_terms(update, client_weight, relative_floor)
  )


def _bounded_terms(
  update, client_weight, mean_masses, relative_floor, max_mass_ratio
):
  """Returns bounded terms, masses in each tensor, what is bounded, overflow."""
  weights, masses, is_bounded = fisher.bounded_weights(
    update.fisher_diagonal, client_weight, mean_masses, max_mass_ratio
  )
  # A mass may overflow, too: it is a sum over a tensor.
  (terms, masses), overflows = zero_if_non_finite(
    (_weighted_terms(update, weights, relative_floor), masses)
  )
  return terms, masses, is_bounded, overflows


def _weighted_terms(update, client_weight, relative_floor):
  return fisher.fisher_weighted_terms(
    update.model_delta,
    update.fisher_diagonal,
    client_weight,
    relative_floor=relative_floor,
  )
