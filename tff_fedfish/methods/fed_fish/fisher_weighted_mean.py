"""The aggregator slot of FedFish: places the Fisher-weighted mean, and sums."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.methods.fed_fish import fisher
from tff_fedfish.rounds.bounds import zero_if_non_finite


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
  w F delta is beyond float32.
  """

  def __init__(
    self,
    relative_floor: float,
    *,
    plain_mean_fraction: float = 0.0,
    takes_plain_mean: Sequence[bool] = (),
  ):
    """Fixes the floor and the part of the plain mean.

    Args:
      relative_floor: See `fisher.fisher_weighted_terms`; >= 0.
      plain_mean_fraction: s of `fisher.mixed_mean`, in [0, 1).
      takes_plain_mean: Whether a tensor takes the plain mean sum(w delta) /
        sum(w), of each tensor of the model in its order; not of all. (): none.

    Raises:
      ValueError: If one of them is outside of that.
    """
    require(relative_floor >= 0, 'relative_floor', 'at least 0', relative_floor)
    is_part = 0 <= plain_mean_fraction < 1
    wanted = 'at least 0 and below 1'
    require(is_part, 'plain_mean_fraction', wanted, plain_mean_fraction)
    flags = tuple(takes_plain_mean)
    some = not flags or not all(flags)
    require(some, 'takes_plain_mean', 'false of some tensor', flags)
    self._relative_floor = relative_floor
    self._plain_mean_fraction = plain_mean_fraction
    # Without any, structures stay as they are.
    self._flags = flags if any(flags) else ()

  def client_mass(
    self, update: DeltaAndFisher, client_weight: tf.Tensor, state: Any
  ) -> Any:
    """Returns w F, by which the server weighs a client's delta.

    The floor is included; it is 0 where the client's terms overflow. The state,
    that of the aggregation process, is not read. Tensors that take the plain
    mean have the mass w in every coordinate; where the plain mean is mixed in,
    that of the Fisher-weighted part is returned.
    """
    del state
    terms, _ = self._terms(update, client_weight)
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

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.tensorflow.computation(value_type, weight_type)
    @tf.function(autograph=False)
    def to_terms(update, client_weight):
      terms, overflows = self._terms(update, client_weight)
      return terms, tf.cast(overflows, tf.int32)

    terms_type, _ = to_terms.type_signature.result

    @tff.tensorflow.computation(terms_type)
    @tf.function(autograph=False)
    def to_mean(sums):
      return self._mean(sums)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, update, client_weight):
      terms, overflows = tff.federated_map(to_terms, (update, client_weight))
      sums = tff.federated_sum(terms)
      measurements = collections.OrderedDict(
        client_weight_sum=tff.federated_sum(client_weight),
        num_overflowing_clients=tff.federated_sum(overflows),
      )
      return tff.templates.MeasuredProcessOutput(
        state,
        tff.federated_map(to_mean, sums),
        tff.federated_zip(measurements),
      )

    return tff.templates.AggregationProcess(initialize, next_fn)

  def _terms(self, update, client_weight):
    """Returns `_Terms`, and whether they overflow."""
    weighted_delta, plain_delta = update.model_delta, ()
    if self._flags:
      weighted_delta = self._chosen(update.model_delta, False)
      plain_delta = self._chosen(update.model_delta, True)
    weighted = fisher.fisher_weighted_terms(
      weighted_delta,
      update.fisher_diagonal,
      client_weight,
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
    return zero_if_non_finite(terms)

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
