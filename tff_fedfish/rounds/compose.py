"""Composes a method's own parts with the ones that all methods share."""

import collections
import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from tff_fedfish.errors import require
from tff_fedfish.rounds import kept as client_io
from tff_fedfish.rounds import local_training
from tff_fedfish.rounds.bounds import clip_to_norm, is_all_finite
from tff_fedfish.rounds.client_work import (
  ClientUpdate,
  MethodState,
  build_client_work,
  split_state,
  weight_of,
)
from tff_fedfish.rounds.gradients import ExtraLoss
from tff_fedfish.rounds.kept import ClientStart, KeptSlot
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.rounds.private_gradients import private_gradients
from tff_fedfish.rounds.trained_models import (
  FederatedProcess,
  StatefulLearningProcess,
)

OPTIMIZER_SLOT = 'optimizer'
"""Slot of the kept state of a client optimizer."""

Structure = Any
Model = tff.learning.models.FunctionalModel | ModelSpec


class TrainedClient(NamedTuple):
  """A client after local training, from which a method makes its update.

  Attributes:
    model: The functional model.
    start: What it started from.
    local: Result of local training, the final trainable weights included.
    max_delta_norm: Bound on the norm of what is sent; None: no bound.
    weight: w_i, float32; 0 without data.
    kept: What it keeps after the round, structures by slot.
    begun: Where it began to train.
  """

  model: tff.learning.models.FunctionalModel
  start: ClientStart
  local: local_training.LocalResult
  max_delta_norm: float | None
  weight: tf.Tensor
  kept: Mapping[str, Structure] = {}
  begun: 'OwnModel | None' = None

  @property
  def non_trainable(self) -> Structure:
    """Weights held fixed."""
    return self.start.non_trainable

  def model_delta(
    self, after: Structure = ()
  ) -> tuple[Structure, Mapping[str, tf.Tensor]]:
    """Returns initial minus final trainable weights, within the bound.

    Args:
      after: Tensors that must be there first, so that the delta does not take
        memory while they are made.

    Returns:
      (delta, counts for `ClientUpdate`): with a bound `num_clipped_clients`, 1
      where it was exceeded.
    """
    with tf.control_dependencies(tf.nest.flatten(after)):
      delta = tf.nest.map_structure(
        tf.subtract, self.start.trainable, self.local.trainable
      )
    return self.bounded(delta)

  def bounded(
    self, delta: Structure
  ) -> tuple[Structure, Mapping[str, tf.Tensor]]:
    """Returns `delta` within the bound, and counts as `model_delta` does."""
    if self.max_delta_norm is None:
      return delta, {}
    delta, is_clipped = clip_to_norm(delta, self.max_delta_norm)
    return delta, {'num_clipped_clients': tf.cast(is_clipped, tf.int32)}


class OwnModel(NamedTuple):
  """A client's own model, with which it begins a round, not the server's.

  Attributes:
    trainable: Its weights.
    found: Tensors that were found with it, by name, for `KeptSlot.next`.
    counts: Int32 scalars for `ClientUpdate`.
  """

  trainable: Structure
  found: Mapping[str, tf.Tensor] = {}
  counts: Mapping[str, tf.Tensor] = {}


def compose(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  make_update: Callable[
    [TrainedClient], tuple[Structure, Mapping[str, tf.Tensor]]
  ]
  | None = None,
  aggregation_factory: tff.aggregators.WeightedAggregationFactory | None = None,
  begin: Callable[[tff.learning.models.FunctionalModel, ClientStart], OwnModel]
  | None = None,
  client_inputs: Sequence[str] = (),
  build_observer: Callable[[Structure], local_training.GradientObserver]
  | None = None,
  build_correct_gradient: Callable[
    [ClientStart], local_training.CorrectGradient
  ]
  | None = None,
  build_extra_loss: Callable[[ClientStart], ExtraLoss] | None = None,
  method_state: MethodState | None = None,
  kept_slots: Mapping[str, KeptSlot] = types.MappingProxyType({}),
  keeps_optimizer_state: bool = False,
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  local_work: Callable[
    [ClientStart, tf.data.Dataset], local_training.LocalResult
  ]
  | None = None,
  local_privacy: LocalPrivacy | None = None,
) -> FederatedProcess:
  """Builds the process of a method.

  Args:
    model: A FunctionalModel or a ModelSpec.
    client_optimizer: The client optimizer.
    server_optimizer: The server optimizer.
    num_local_epochs: E, >= 1.
    client_weighting: How clients are weighed against each other.
    make_update: From what a client trained, what it sends and what it counts:
      the counts of `TrainedClient.model_delta`. None: the server is sent
      nothing, and its weights stay as they are.
    aggregation_factory: Turns these into a pseudo-gradient.
    begin: From the functional model and a client's start, the client's own
      model, with which local training begins. None: with the server's weights.
    client_inputs: Further inputs that clients are given, see `client_io`.
    build_observer: From the initial trainable weights, a hook on the gradients
      of the last local epoch. None: no hook.
    build_correct_gradient: From a client's start, `correct_gradient` of
      `local_training.train`. None: no hook.
    build_extra_loss: Its `extra_loss`, from the same. None: no hook.
    method_state: A state of the method, which clients receive. None: there is
      none.
    kept_slots: What clients keep between rounds, or return, by name.
    keeps_optimizer_state: Whether clients also keep the state of their
      optimizer, in the slot 'optimizer'.
    max_delta_norm: Bound on the global L2 norm of a client's delta, > 0. None:
      no bound.
    num_local_steps: H, >= 1, after which a client stops. None: no limit.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1. None: all.
    local_work: Takes the place of local training, hooks and numbers of steps
      included. None: clients train.
    local_privacy: Makes clients train by DP-SGD: every gradient is that of
      `private_gradients.py`, the extra loss inside of what is clipped, and
      clients are given the input `client_data.LOCAL_PRIVACY`. What a method
      sends beside the model delta must depend on data by these gradients only.
      Not with `micro_batch_size`. None: they do not.

  Returns:
    The learning process; its `trained_models` gives the clients' models. Where
    clients keep or return anything it is a `StatefulLearningProcess`.

  Raises:
    ValueError: If `num_local_epochs`, `num_local_steps` or `micro_batch_size`
      is not an integer >= 1, or `max_delta_norm` is not above 0.
  """
  for name, value, alternative in (
    ('num_local_epochs', num_local_epochs, ''),
    ('num_local_steps', num_local_steps, ' or None'),
    ('micro_batch_size', micro_batch_size, ' or None'),
  ):
    is_left_out = alternative and value is None
    is_count = isinstance(value, int) and value >= 1
    wanted = f'an integer of at least 1{alternative}'
    require(is_left_out or is_count, name, wanted, value)
  is_bound = max_delta_norm is None or max_delta_norm > 0
  require(is_bound, 'max_delta_norm', 'above 0 or None', max_delta_norm)
  if local_privacy is not None:
    wanted = 'None with local_privacy'
    require(
      micro_batch_size is None, 'micro_batch_size', wanted, micro_batch_size
    )
    client_inputs = (*client_inputs, client_io.LOCAL_PRIVACY)
  functional_model, initial_weights = _build_initial_weights(model)
  weights_type = initial_weights.type_signature.result
  slots = dict(kept_slots)
  if keeps_optimizer_state:
    slots[OPTIMIZER_SLOT] = KeptSlot(
      initial=client_optimizer.initialize,
      next=lambda client: client.local.optimizer_state,
    )

  kept_only = {n: slot for n, slot in slots.items() if slot.initial is not None}

  def start_of(work_state, trainable, non_trainable, client_data):
    hparams, state_of_method = split_state(work_state, method_state)
    dataset, kept = client_io.split_client_data(
      client_data, kept_only, trainable
    )
    inputs = {name: client_data[name] for name in client_inputs}
    start = ClientStart(
      trainable, non_trainable, hparams, state_of_method, kept, inputs
    )
    return start, dataset

  def own_model(*argument):
    start, _ = start_of(*argument)
    return begin(functional_model, start).trainable

  def client_update(work_state, trainable, non_trainable, client_data):
    start, dataset = start_of(work_state, trainable, non_trainable, client_data)
    begun = OwnModel(trainable)
    if begin is not None:
      begun = begin(functional_model, start)

    def hook(build):
      return build(start) if build else None

    if local_work is not None:
      local = local_work(start, dataset)
    else:
      local = local_training.train(
        functional_model,
        client_optimizer,
        start.hparams,
        begun.trainable,
        non_trainable,
        dataset,
        num_local_epochs=num_local_epochs,
        num_local_steps=num_local_steps,
        micro_batch_size=micro_batch_size,
        optimizer_state=start.kept.get(OPTIMIZER_SLOT),
        extra_loss=hook(build_extra_loss),
        correct_gradient=hook(build_correct_gradient),
        observer=build_observer(trainable) if build_observer else None,
        **(_private(local_privacy, start) if local_privacy else {}),
      )
    trained = TrainedClient(
      functional_model,
      start,
      local,
      max_delta_norm,
      weight_of(local, client_weighting),
      begun=begun,
    )
    trained = trained._replace(
      kept={name: slot.next(trained) for name, slot in slots.items()}
    )
    update, counts = tf.constant(0.0), {}
    if make_update is not None:
      update, counts = make_update(trained)
    counts = {**counts, **begun.counts}
    summands = method_state.summands(trained) if method_state else ()
    return ClientUpdate(local, update, counts, summands, trained.kept)

  kept_specs = client_io.kept_specs(
    kept_only, client_io.trainable_specs(functional_model)
  )
  client_work = build_client_work(
    functional_model,
    weights_type,
    client_optimizer,
    client_weighting,
    client_update,
    method_state,
    kept_specs,
    client_inputs=client_io.input_specs(functional_model, client_inputs),
    returns_output=bool(slots),
  )
  if aggregation_factory is None:
    aggregation_factory = tff.aggregators.MeanFactory(no_nan_division=True)
  result_type = client_work.next.type_signature.result.result.member
  process = tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    client_work,
    aggregation_factory.create(result_type.update, result_type.update_weight),
    _build_finalizer(server_optimizer, weights_type)
    if make_update is not None
    else _build_idle_finalizer(weights_type),
  )
  parts = (process, client_update, client_weighting)
  if not slots:
    return FederatedProcess(*parts)
  return StatefulLearningProcess(
    *parts,
    kept_specs=kept_specs,
    client_inputs=tuple(client_inputs),
    own_model=None if begin is None else own_model,
  )


def _private(privacy, start):
  """Returns the options of `local_training.train` that make it DP-SGD."""
  noise_seed, num_examples, num_unobserved = client_io.only_element(
    start.inputs[client_io.LOCAL_PRIVACY]
  )
  options = dict(
    gradient_of=functools.partial(
      private_gradients, privacy=privacy, noise_seed=noise_seed
    )
  )
  if privacy.draws_batches:
    options['drawn'] = local_training.DrawnSteps(num_examples, num_unobserved)
  return options


def _build_initial_weights(
  model: Model,
) -> tuple[tff.learning.models.FunctionalModel, tff.Computation]:
  """Returns the functional model and a computation of its initial weights.

  Those of a FunctionalModel become constants of the graph, those of a ModelSpec
  are drawn inside it.

  Raises:
    TypeError: If `model` is neither, or its weights are not flat sequences.
  """
  if isinstance(model, ModelSpec):
    functional_model = model.functional_model
    draw = model.draw_initial_weights
  elif isinstance(model, tff.learning.models.FunctionalModel):
    functional_model = model
    draw = functools.partial(
      tf.nest.map_structure, tf.convert_to_tensor, model.initial_weights
    )
  else:
    raise TypeError(
      '`model` must be a tff.learning.models.FunctionalModel or a '
      f'tff_fedfish.ModelSpec, found {type(model).__name__}.'
    )
  for part in functional_model.initial_weights:
    if not isinstance(part, list | tuple) or any(
      isinstance(weight, list | tuple | dict) for weight in part
    ):
      raise TypeError(
        'The initial weights of `model` must be two flat sequences of '
        f'weights, found {type(part).__name__}.'
      )

  @tff.tensorflow.computation
  def initial_weights():
    return tff.learning.models.ModelWeights(*map(tuple, draw()))

  return functional_model, initial_weights


def _build_finalizer(
  server_optimizer: tff.learning.optimizers.Optimizer,
  weights_type: tff.Type,
) -> tff.learning.templates.FinalizerProcess:
  """Builds a finalizer that steps only on an informative pseudo-gradient.

  A cohort that is empty, or whose clients were all rejected, yields an all-zero
  pseudo-gradient. A server optimizer with momentum would move the weights on
  it all the same, so weights and optimizer state are kept as they were. The
  measurements say why: `update_is_non_finite` and `update_is_all_zero` (int32,
  0 or 1).
  """

  @tf.autograph.experimental.do_not_convert
  def should_reject(unused_optimizer_state, update):
    tensors = tf.nest.flatten(update)
    non_finite = tf.logical_not(is_all_finite(update))
    all_zero = tf.reduce_all([tf.reduce_all(tf.equal(t, 0)) for t in tensors])
    measurements = collections.OrderedDict(
      update_is_non_finite=tf.cast(non_finite, tf.int32),
      update_is_all_zero=tf.cast(all_zero, tf.int32),
    )
    return tf.logical_or(non_finite, all_zero), measurements

  return tff.learning.templates.build_apply_optimizer_finalizer(
    server_optimizer, weights_type, should_reject_update=should_reject
  )


def _build_idle_finalizer(
  weights_type: tff.Type,
) -> tff.learning.templates.FinalizerProcess:
  """Builds a finalizer that leaves the weights as they are."""

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.SERVER),
    tff.FederatedType(tff.TensorType(np.float32), tff.SERVER),
  )
  def next_fn(state, weights, unused_update):
    measurements = tff.federated_value(
      collections.OrderedDict(update_is_non_finite=0, update_is_all_zero=0),
      tff.SERVER,
    )
    return tff.templates.MeasuredProcessOutput(state, weights, measurements)

  return tff.learning.templates.FinalizerProcess(initialize, next_fn)
