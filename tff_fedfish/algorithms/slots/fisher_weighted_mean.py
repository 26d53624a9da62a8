"""The aggregator slot of FedFish: places the Fisher-weighted mean, and sums."""

import collections
from collections.abc import Sequence
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
    fisher_diagonal: Float32, same shapes; of the tensors that take the plain
      mean there is none, and it is a flat tuple of the others.
  """

  model_delta: Any
  fisher_diagonal: Any


class _Terms(NamedTuple):
  """Summands of one client, all 0 if one of them overflows.

  Attributes:
    weighted: (w F delta, w F) of the tensors that are weighed by F.
    plain_delta: w delta of the tensors that need the plain mean.
    weight: w for that mean; () without such tensors.
  """

  weighted: tuple[Any, Any]
  plain_delta: Any
  weight: Any


class FisherWeightedMeanFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregates `DeltaAndFisher` to sum(w F delta) / sum(w F).

  The server sees sums over clients only: two tensors per weight tensor, three
  where the plain mean is mixed in, one where it is taken instead.
  Measurements: `client_weight_sum`; `num_overflowing_clients`, left out because
  w F delta is beyond float32; `zero_mass_fraction`, the share of the
  coordinates weighed by F in which no client has Fisher mass.

  With `max_mass_ratio` the state holds `mean_masses`, float32 [tensors]: the
  mean mass of the last round's clients with data in each tensor, after the
  bound. It is broadcast to the clients of the next round, and the clients that
  it bounds in any tensor are measured as `num_bounded_clients`.
  """

  def __init__(
    self,
    relative_floor: float,
    max_mass_ratio: float | None = None,
    *,
    plain_mean_fraction: float = 0.0,
    takes_plain_mean: Sequence[bool] = (),
  ):
    """Fixes the floor, the bound and the part of the plain mean.

    Args:
      relative_floor: See `fisher.fisher_weighted_terms`; >= 0.
      max_mass_ratio: See `fisher.bounded_weights`; >= 1. None: no bound.
      plain_mean_fraction: s of `fisher.mixed_mean`, in [0, 1).
      takes_plain_mean: Whether a tensor takes the plain mean sum(w delta) /
        sum(w), of each tensor of the model in its order; not of all. (): none.

    Raises:
      ValueError: If one of them is outside of that.
    """
    require(relative_floor >= 0, 'relative_floor', 'at least 0', relative_floor)
    is_bound = max_mass_ratio is None or max_mass_ratio >= 1
    wanted = 'at least 1 or None'
    require(is_bound, 'max_mass_ratio', wanted, max_mass_ratio)
    is_part = 0 <= plain_mean_fraction < 1
    wanted = 'at least 0 and below 1'
    require(is_part, 'plain_mean_fraction', wanted, plain_mean_fraction)
    flags = tuple(takes_plain_mean)
    some = not flags or not all(flags)
    require(some, 'takes_plain_mean', 'false of some tensor', flags)
    self._relative_floor = relative_floor
    self._max_mass_ratio = max_mass_ratio
    self._plain_mean_fraction = plain_mean_fraction
    # Without any, structures stay as they are.
    self._flags = flags if any(flags) else ()

  def client_mass(
    self, update: DeltaAndFisher, client_weight: tf.Tensor, state: Any
  ) -> Any:
    """Returns w F, by which the server weighs a client's delta.

    Floor and bound are included; it is 0 where the client's terms overflow. The
    state is that of the aggregation process before the round. Tensors that take
    the plain mean have the mass w in every coordinate; where the plain mean is
    mixed in, that of the Fisher-weighted part is returned.
    """
    terms, *_ = self._terms(update, client_weight, state)
    _, mass = terms.weighted
    if not self._flags:
      return mass
    of_others = iter(mass)
    return tuple(
      tf.fill(delta.shape, terms.weight) if is_plain else next(of_others)
      for delta, is_plain in zip(update.model_delta, self._flags, strict=True)
    )

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
      return self._mean(sums)

    @tff.tensorflow.computation(terms_type)
    @tf.function(autograph=False)
    def to_zero_mass_fraction(sums):
      _, fisher_mass = sums.weighted
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
    """Returns `_Terms`, masses, what exceeds the bound, overflow.

    Masses and bounds are those of each tensor weighed by F, () without a bound.
    """
    weights, masses, exceeds = client_weight, (), ()
    if self._max_mass_ratio is not None:
      weights, masses, exceeds = fisher.bounded_weights(
        update.fisher_diagonal,
        client_weight,
        state['mean_masses'],
        self._max_mass_ratio,
      )
    weighted_delta, plain_delta = update.model_delta, ()
    if self._flags:
      weighted_delta = self._chosen(update.model_delta, False)
      plain_delta = self._chosen(update.model_delta, True)
    weighted = fisher.fisher_weighted_terms(
      weighted_delta,
      update.fisher_diagonal,
      weights,
      relative_floor=self._relative_floor,
    )
    if self._plain_mean_fraction:
      plain_delta = update.model_delta
    has_plain = bool(tf.nest.flatten(plain_delta))
    terms = _Terms(
      weighted,
      tf.nest.map_structure(
        lambda d: tf.cast(client_weight, d.dtype) * d, plain_delta
      ),
      client_weight if has_plain else (),
    )
    # A mass may overflow, too: it is a sum over a tensor.
    (terms, masses), overflows = zero_if_non_finite((terms, masses))
    return terms, masses, exceeds, overflows

  def _mean(self, sums):
    """Returns the pseudo-gradient from the sums of `_Terms`."""
    weighted = fisher.fisher_weighted_mean(*sums.weighted)
    plain = tf.nest.map_structure(
      lambda d: tf.math.divide_no_nan(d, tf.cast(sums.weight, d.dtype)),
      sums.plain_delta,
    )
    fraction = self._plain_mean_fraction
    if not self._flags:
      if not fraction:
        return weighted
      return fisher.mixed_mean(weighted, plain, fraction)
    if fraction:
      of_others = self._chosen(plain, False)
      weighted = fisher.mixed_mean(weighted, of_others, fraction)
      plain = self._chosen(plain, True)
    parts = {True: iter(plain), False: iter(weighted)}
    return tuple(next(parts[is_plain]) for is_plain in self._flags)

  def _chosen(self, tensors, are_plain):
    """Returns the tensors that take the plain mean, or the others."""
    pairs = zip(tensors, self._flags, strict=True)
    return tuple(t for t, is_plain in pairs if is_plain == are_plain)
