"""FedFish as a learning process: a client's F, the server's mean, the builder.

The formulas and letters are those of the package's `__init__.py`.
"""

import collections
import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.errors import require
from tff_fedfish.methods.fed_fish import FedFishConfig, averaged_axes
from tff_fedfish.methods.settings import require_in_range
from tff_fedfish.rounds import compression
from tff_fedfish.rounds.compose import Model, compose
from tff_fedfish.rounds.finite import zero_if_non_finite
from tff_fedfish.rounds.gradients import batch_gradients
from tff_fedfish.rounds.local_training import GradientObserver
from tff_fedfish.rounds.privacy import LocalPrivacy

_map = tf.nest.map_structure


class DeltaAndFisher(NamedTuple):
  """Update of a client, before it is weighed.

  Attributes:
    model_delta: delta: initial minus final trainable weights.
    fisher_diagonal: F^p, float32 >= 0, a tensor for each weight. All entries
      along an axis of length 1 share one number.
  """

  model_delta: tuple[tf.Tensor, ...]
  fisher_diagonal: tuple[tf.Tensor, ...]


class Squares(NamedTuple):
  """Sums of g_b^2, float32, and the number of batches b, int64.

  The sum of a tensor whose squares are not needed is 0 of shape [1, ...].
  """

  sums: tuple[tf.Tensor, ...]
  num_batches: tf.Tensor


@tf.autograph.experimental.do_not_convert
def no_squares(trainable: Any, plain: Collection[int] = ()) -> Squares:
  """Returns the sums over no batches; those at `plain` are not needed."""
  shapes = [
    [1] * w.shape.rank if i in plain else w.shape
    for i, w in enumerate(trainable)
  ]
  return Squares(tuple(map(tf.zeros, shapes)), tf.constant(0, tf.int64))


@tf.autograph.experimental.do_not_convert
def add_squares(
  squares: Squares, gradients: Any, plain: Collection[int] = ()
) -> Squares:
  """Adds g_b^2 of one batch, squared in float32 whatever the dtype of g_b."""
  sums = tuple(
    total if i in plain else total + tf.square(tf.cast(g, tf.float32))
    for i, (total, g) in enumerate(zip(squares.sums, gradients, strict=True))
  )
  return Squares(sums, squares.num_batches + 1)


def squared_gradients(
  model: Any,
  weights: tuple[Any, Any],
  dataset: tf.data.Dataset,
  micro_batch_size: int | None = None,
  plain: Collection[int] = (),
) -> Squares:
  """Sums g_b^2 at fixed (trainable, non_trainable) weights, as algorithm 2.

  g_b is the gradient of the data loss, without dropout and augmentation.
  """
  squares = no_squares(weights[0], plain)
  for batch in iter(dataset):
    # The weights are fixed, so nothing else would keep batches from running,
    # and taking memory, side by side.
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    found = batch_gradients(
      model, *weights, batch, training=False, micro_batch_size=micro_batch_size
    )
    squares = add_squares(squares, found.data, plain)
  return squares


def second_moment(adam_state: Any) -> Squares:
  """Returns v / (1 - beta_2^t) after t steps, as the square of one batch.

  It is a mean of the squared gradients of local training, with later ones
  weighing more: g^2 after one step, 0 without a step.
  """
  beta_2 = tf.cast(adam_state['beta_2'], tf.float32)
  correction = 1.0 - tf.pow(beta_2, tf.cast(adam_state['step'], tf.float32))

  def corrected(v):
    return tf.math.divide_no_nan(tf.cast(v, tf.float32), correction)

  means = _map(corrected, adam_state['preconditioner'])
  return Squares(means, tf.constant(1, tf.int64))


def _squares_of(client, estimator, micro_batch_size, plain):
  """Returns the squares of a client that has trained."""
  weights = client.local.trainable, client.start.non_trainable
  dataset = client.local.dataset
  if estimator == 'last_epoch':
    return client.local.observation
  if estimator == 'second_moment':
    return second_moment(client.local.optimizer_state)
  if estimator == 'example_sq':
    dataset, micro_batch_size = dataset.unbatch().batch(1), None
  return squared_gradients(
    client.model, weights, dataset, micro_batch_size, plain
  )


class TensorAxes(NamedTuple):
  """Meaning of a tensor's axes; see `ModelSpec`."""

  is_stacked: bool = False
  input_axis: int | None = None


@dataclasses.dataclass(frozen=True)
class FisherWeights:
  """CLIENTS: makes F^p, or m, of the sums of squares; see `FedFishConfig`."""

  axes: Sequence[TensorAxes]
  """Axes of each tensor."""
  reduction: str = 'sum'
  normalization: str = 'none'
  power: float = 1.0
  granularity: str = 'element'
  mix: float | None = None
  cap: float | None = None
  plain_tensors: Collection[int] = ()
  """Positions of the tensors with F = 1, of shape [1, ...]."""

  @tf.autograph.experimental.do_not_convert
  def __call__(self, squares: Squares) -> tuple[tf.Tensor, ...]:
    """Returns the weights; an axis that is averaged over stays, of length 1."""
    return tuple(
      tf.ones([1] * total.shape.rank)
      if i in self.plain_tensors
      else self._weights(total, squares.num_batches, self.axes[i])
      for i, total in enumerate(squares.sums)
    )

  def _weights(self, f, num_batches, axes):
    if self.reduction == 'mean':
      f = tf.math.divide_no_nan(f, tf.cast(num_batches, tf.float32))
    if self.power != 1:
      # The root is exact to the last bit.
      f = tf.sqrt(f) if self.power == 0.5 else tf.pow(f, self.power)
    averaged = averaged_axes(
      self.granularity, f.shape.rank, axes.input_axis, axes.is_stacked
    )
    if averaged:
      f = tf.reduce_mean(f, averaged, keepdims=True)
    if self.normalization == 'tensor_mean' or self.mix is not None:
      layer_axes = list(range(1, f.shape.rank)) if axes.is_stacked else None
      mean = tf.reduce_mean(f, layer_axes, keepdims=axes.is_stacked)
      f = tf.math.divide_no_nan(f, mean)
    if self.cap is not None:
      # Not `minimum`, which may hide a NaN.
      f = tf.where(f > self.cap, self.cap, f)
    return f if self.mix is None else 1.0 - self.mix + self.mix * f


class Terms(NamedTuple):
  """Summands of a client: w F delta, w F and, only if s > 0, w delta and w."""

  weighted_delta: Any
  mass: Any
  plain_delta: Any = ()
  weight: Any = ()


@dataclasses.dataclass(frozen=True)
class FisherMean(tff.aggregators.WeightedAggregationFactory):
  """Aggregates `DeltaAndFisher` to g: the quotient of two sums over clients.

  Measurements: `client_weight_sum`; `num_overflowing_clients`, left out because
  w F delta is beyond float32.
  """

  relative_floor: float = 0.0
  plain_mean_fraction: float = 0.0
  plain_tensors: Collection[int] = ()
  """Positions of the tensors with F = 1."""

  def terms(
    self, update: DeltaAndFisher, weight: tf.Tensor
  ) -> tuple[Terms, tf.Tensor]:
    """CLIENTS: returns the summands, and whether they overflow and are all 0.

    The floor gives mass to a coordinate in which nobody is informed. A client
    weighs w times the mean of its F there, which is FedAvg's weight only where
    these means are equal, as with 'tensor_mean'. F = 1 has no floor.
    """

    def mass(position, delta, fisher):
      if position not in self.plain_tensors:
        fisher += self.relative_floor * tf.reduce_mean(fisher)
      return tf.cast(weight * fisher, delta.dtype)

    positions = tuple(range(len(update.model_delta)))
    masses = _map(mass, positions, update.model_delta, update.fisher_diagonal)
    terms = Terms(_map(tf.multiply, masses, update.model_delta), masses)
    if self.plain_mean_fraction:
      deltas = [update.model_delta[i] for i in self._mixed(masses)]
      plain = tuple(tf.cast(weight, d.dtype) * d for d in deltas)
      terms = terms._replace(plain_delta=plain, weight=weight)
    return zero_if_non_finite(terms)

  def mean(self, sums: Terms) -> tuple[tf.Tensor, ...]:
    """SERVER: returns g, 0 where there is no mass."""
    g = list(_map(tf.math.divide_no_nan, sums.weighted_delta, sums.mass))
    s = self.plain_mean_fraction
    if s:
      for i, total in zip(self._mixed(g), sums.plain_delta, strict=True):
        weight = tf.cast(sums.weight, total.dtype)
        g[i] = s * tf.math.divide_no_nan(total, weight) + (1.0 - s) * g[i]
    return tuple(g)

  def _mixed(self, tensors):
    """Returns the positions of the tensors whose mean is a mixture."""
    return [i for i in range(len(tensors)) if i not in self.plain_tensors]

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


def build_fed_fish(
  model: Model,
  *,
  fisher_estimator: str = 'extra_pass',
  fisher_reduction: str = 'sum',
  fisher_normalization: str = 'none',
  fisher_power: float = 1.0,
  fisher_granularity: str = 'element',
  fisher_mix: float | None = None,
  fisher_cap: float | None = None,
  plain_mean_fraction: float = 0.0,
  plain_mean_tensors: str = 'none',
  relative_floor: float = 1e-8,
  micro_batch_size: int | None = None,
  local_privacy: LocalPrivacy | None = None,
  **training: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds FedFish: settings of `FedFishConfig`, and arguments of `compose`.

  `set_in_process_context` runs the process in this Python process.

  'logits' requires the ModelSpec of a language model, 'second_moment' an Adam.

  Raises:
    ValueError: If a setting is outside its range, or an estimator would read
      data without `local_privacy`'s noise.
  """
  require_in_range(
    FedFishConfig,
    fisher_estimator=fisher_estimator,
    fisher_reduction=fisher_reduction,
    fisher_normalization=fisher_normalization,
    fisher_power=fisher_power,
    fisher_granularity=fisher_granularity,
    fisher_mix=fisher_mix,
    fisher_cap=fisher_cap,
    plain_mean_fraction=plain_mean_fraction,
    plain_mean_tensors=plain_mean_tensors,
    relative_floor=relative_floor,
  )
  is_mixed = fisher_mix is not None
  is_read = is_mixed or fisher_cap is None
  require(is_read, 'fisher_cap', 'None without fisher_mix', fisher_cap)
  differs = not (is_mixed and fisher_granularity == 'tensor')
  wanted = "not 'tensor' with fisher_mix: clients would weigh the same"
  require(differs, 'fisher_granularity', wanted, fisher_granularity)
  training |= dict(
    micro_batch_size=micro_batch_size, local_privacy=local_privacy
  )
  if fisher_power == 0 or fisher_mix == 0 or plain_mean_fraction == 1:
    return compose(  # FedAvg, without F.
      model, make_update=lambda client: client.model_delta(), **training
    )
  is_observed = fisher_estimator == 'last_epoch'
  wanted = "'last_epoch' with local_privacy: others read data without noise"
  is_noised = is_observed or not local_privacy
  require(is_noised, 'fisher_estimator', wanted, fisher_estimator)
  use_logits = plain_mean_tensors == 'logits'
  plain = _positions(model.makes_logits) if use_logits else ()
  fisher_weights = FisherWeights(
    _axes(model),
    fisher_reduction,
    fisher_normalization,
    fisher_power,
    fisher_granularity,
    fisher_mix,
    fisher_cap,
    plain,
  )

  def make_update(client):
    squares = _squares_of(client, fisher_estimator, micro_batch_size, plain)
    model_delta, counts = client.model_delta(after=squares)
    fisher = fisher_weights(squares)
    if client.quantized and fisher_granularity == 'element':
      fisher = compression.logarithmic(fisher)
    return DeltaAndFisher(model_delta, fisher), counts

  return compose(
    model,
    make_update=make_update,
    aggregation_factory=FisherMean(relative_floor, plain_mean_fraction, plain),
    build_observer=_observing_squares(plain) if is_observed else None,
    **training,
  )


def _axes(model):
  """Returns the `TensorAxes` of a model's trainable tensors."""
  inner = getattr(model, 'functional_model', model)
  ranks = [len(weight.shape) for weight in inner.initial_weights[0]]
  stacked = getattr(model, 'is_stacked', None) or [False] * len(ranks)
  inputs = getattr(model, 'input_axes', None) or [
    rank - 2 if rank - is_stacked >= 2 else None
    for rank, is_stacked in zip(ranks, stacked, strict=True)
  ]
  return tuple(map(TensorAxes, stacked, inputs))


def _positions(flags):
  return frozenset(i for i, flag in enumerate(flags) if flag)


def _observing_squares(plain):
  """Returns a builder of hooks that sum the last epoch's squared gradients."""
  return lambda trainable: GradientObserver(
    no_squares(trainable, plain),
    lambda squares, found, num_rows: add_squares(squares, found, plain),
  )


def client_mass(config: Any) -> Any:
  """Returns w F in every coordinate, and s, as `Method.mass` describes."""
  settings = config.algorithm
  s = settings.plain_mean_fraction
  if settings.is_plain_mean:
    return lambda update, weight, state: [weight] * len(update), s
  aggregator = FisherMean(settings.relative_floor)

  def mass(update, weight, unused_state):
    terms, _ = aggregator.terms(update, weight)
    shapes = [delta.shape for delta in terms.weighted_delta]
    return list(map(tf.broadcast_to, terms.mass, shapes))

  return mass, s
