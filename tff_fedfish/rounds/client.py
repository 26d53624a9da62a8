"""A client in a round: what it starts from, trains, keeps and sends."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tff_fedfish.late import module, tf

optimizers = module('tff_fedfish.optimizers')

Structure = Any
# Int32 scalars by name, summed over the clients whose update is finite.
Counts = Mapping[str, Any]


class Start(NamedTuple):
  """A client before local training.

  Attributes:
    model: The `tff.learning.models.FunctionalModel`.
    spec: Its `ModelSpec`; None if the process was built of the model alone.
    trainable: Trainable weights of the server.
    non_trainable: Weights held fixed.
    hparams: Hyperparameters of the client optimizer.
    method: The method's state on the server; () without one.
    kept: Kept structures by slot; empty without slots.
    inputs: Further client inputs by name, see `kept.client_data_type`.
    start_model: Trainable weights with which local training begins. None: those
      of the server.
    extras: Tensors of `Method.begin` by name, for `KeptSlot.next`.
    counts: Counts of `Method.begin`.
  """

  model: Any
  spec: Any
  trainable: Structure
  non_trainable: Structure
  hparams: Structure
  method: Structure = ()
  kept: Mapping[str, Structure] = {}
  inputs: Mapping[str, Any] = {}
  start_model: Structure | None = None
  extras: Mapping[str, Any] = {}
  counts: Counts = {}


class LocalResult(NamedTuple):
  """Result of local training.

  Attributes:
    trainable: The trained weights.
    metrics: The model's metrics state over all local steps.
    num_examples: Int64, the rows that were trained on, each counted once.
    gradient_sums: The observer's last value; None without one.
    mean_loss: Float32, the mean over the local steps of the data loss of their
      batches; 0 without a step.
    dataset: `tf.data.Dataset` of the rows that were trained on, each once, in
      batches.
    optimizer_state: The optimizer's, after the last step.
    num_steps: Int32, the local steps; 0 without data.
  """

  trainable: Structure
  metrics: Structure
  num_examples: Any
  gradient_sums: Structure
  mean_loss: Any
  dataset: Any
  optimizer_state: Structure
  num_steps: Any


class Trained(NamedTuple):
  """A client after local training.

  Attributes:
    start: The client before local training.
    local: Result of local training.
    weight: w_i, float32; 0 without data.
    max_delta_norm: Bound on the norm of a delta. None: no bound.
    quantize: Delta -> the delta that the server reads. None: not quantized.
    micro_batch_size: As `compose` has it.
    kept_next: Structures that the client keeps or returns, by slot.
    update: Structure for the aggregator; every leaf float.
    counts: Counts; reported beside `num_empty_clients`.
    state_terms: The method state's, see `MethodState`; () without one.
  """

  start: Start
  local: LocalResult
  weight: Any
  max_delta_norm: float | None = None
  quantize: Callable[[Structure], Structure] | None = None
  micro_batch_size: int | None = None
  kept_next: Mapping[str, Structure] = {}
  update: Structure = ()
  counts: Counts = {}
  state_terms: Structure = ()

  def model_delta(self, after: Structure = ()) -> tuple[Structure, Counts]:
    """Returns initial minus final trainable weights, bounded and quantized.

    Args:
      after: Tensors that are computed first, so that the delta takes no memory
        meanwhile.

    Returns:
      (delta, counts): with a bound `num_clipped_clients`, 1 where it was
      exceeded.
    """
    with tf.control_dependencies(tf.nest.flatten(after)):
      delta = tf.nest.map_structure(
        tf.subtract, self.start.trainable, self.local.trainable
      )
    return self.bounded(delta)

  def bounded(self, delta: Structure) -> tuple[Structure, Counts]:
    """Returns `delta` bounded and quantized, counts as `model_delta` does."""
    counts = {}
    if self.max_delta_norm is not None:
      delta, is_clipped = optimizers.clip_to_norm(delta, self.max_delta_norm)
      counts['num_clipped_clients'] = tf.cast(is_clipped, tf.int32)
    return self.quantize(delta) if self.quantize else delta, counts


class KeptSlot(NamedTuple):
  """Tensors that every client keeps from round to round, or only returns.

  Attributes:
    initial: (trainable weights of the server) -> the structure of a client in
      its first round, of float or integer tensors. None: the client returns
      `next` and keeps nothing.
    next: (`Trained`) -> the structure after a round. A client without data, or
      whose update, metrics or kept tensors are not all finite, keeps what it
      had.
    num_models: Size in models, for `fedfish plan`: a number, or (config) -> it.
  """

  initial: Callable[[Structure], Structure] | None
  next: Callable[[Trained], Structure]
  num_models: float | Callable[[Any], float] = 1


LAST_MODEL = KeptSlot(
  initial=lambda trainable: trainable,
  next=lambda client: client.local.trainable,
)
"""Slot of the model that a client trained last; the server's in its first."""


class MethodState(NamedTuple):
  """State of a method on the server, which every client receives.

  Attributes:
    initial: (specs of the trainable weights) -> tensors or numbers by field
      name, before the first round.
    terms: (`Trained`) -> structure of float tensors, to be summed over the
      clients that have data and are finite.
    next: (state, sums, counts) -> state after a round, plain TensorFlow. The
      counts are those of `metrics['client_work']['clients']`.
    reported: Fields that are metrics, with their values when the round begins.
    reported_after: Fields that are metrics, with their values when it ends.
  """

  initial: Callable[[Structure], Mapping[str, Any]]
  terms: Callable[[Trained], Structure]
  next: Callable[[Structure, Structure, Counts], Structure]
  reported: tuple[str, ...] = ()
  reported_after: tuple[str, ...] = ()
