"""Makes a method's hooks, and what all methods share, a learning process.

A client's round: it starts from what the server sent and from what it kept, or
with a model of its own (`begin`), and trains (`local_training`, or `local_work`
in its place). Kept tensors are computed first, then the update.
"""

import functools
import types
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
import tensorflow_federated as tff

from models.functional_model import ModelSpec
from tff_fedfish.errors import require
from tff_fedfish.rounds import (
  compression,
  kept,
  local_steps,
  local_training,
)
from tff_fedfish.rounds.client import (
  Counts,
  KeptSlot,
  LocalResult,
  MethodState,
  Start,
  Structure,
  Trained,
)
from tff_fedfish.rounds.client_work import (
  build_client_work,
  split_state,
  weight_of,
)
from tff_fedfish.rounds.finalizers import build_finalizer, build_idle_finalizer
from tff_fedfish.rounds.privacy import LocalPrivacy
from tff_fedfish.rounds.private_gradients import private_gradients
from tff_fedfish.rounds.trained_models import FederatedProcess
from tff_fedfish.runtime.graph_function import without_garbage_collection

OPTIMIZER_SLOT = 'optimizer'
"""Slot of the kept state of a client optimizer."""

Model = tff.learning.models.FunctionalModel | ModelSpec


@without_garbage_collection()
def compose(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int = 1,
  client_weighting: tff.learning.ClientWeighting = (
    tff.learning.ClientWeighting.NUM_EXAMPLES
  ),
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  keeps_optimizer_state: bool = False,
  local_privacy: LocalPrivacy | None = None,
  delta_bits: int = compression.FLOAT_BITS,
  make_update: Callable[[Trained], tuple[Structure, Counts]] | None = None,
  aggregation_factory: tff.aggregators.WeightedAggregationFactory | None = None,
  begin: Callable[[Start], Start] | None = None,
  client_inputs: Sequence[str] = (),
  observer: Callable[[Start], local_training.GradientObserver] | None = None,
  correct_gradient: Callable[[Start, Structure, Structure], Structure]
  | None = None,
  extra_loss: Callable[..., tf.Tensor] | None = None,
  takes_steps: bool = True,
  local_work: Callable[[Start, tf.data.Dataset], LocalResult] | None = None,
  method_state: MethodState | None = None,
  kept_slots: Mapping[str, KeptSlot] = types.MappingProxyType({}),
) -> FederatedProcess:
  """Builds the process of a method.

  The keywords up to `delta_bits` are those that every builder takes; the
  others are a method's own.

  Args:
    model: A FunctionalModel, or a ModelSpec for weights drawn in the graph.
    client_optimizer: Optimizer of local training.
    server_optimizer: Consumes the aggregate of the updates as a gradient.
    num_local_epochs: E, passes over a client's data per round, >= 1.
    client_weighting: Client weight w_i: the rows that were trained on, each
      counted once, or 1.
    max_delta_norm: Bound on the global L2 norm of what `Trained.model_delta`
      returns, over all trainable tensors, > 0; a longer delta is scaled down,
      before it is quantized. None: no bound.
    num_local_steps: H, >= 1: a client stops after H steps. None: after E
      passes.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1; their gradients are averaged. None: all.
    keeps_optimizer_state: Whether clients keep the state of their optimizer
      between rounds, in the slot 'optimizer'.
    local_privacy: Clients train by DP-SGD: gradients, the extra loss included,
      are clipped per row and noised, and clients are given the input
      `client_data.LOCAL_PRIVACY`. Whatever else a method sends must be computed
      from these gradients. Not with `micro_batch_size` and `local_work`. None:
      plain gradients.
    delta_bits: 8 or 4: `Trained.model_delta` and `bounded` return quantized
      deltas, see `compression`, and clients are given the input
      `client_data.ROUNDING_SEED`. Kept tensors and the rest of the update are
      sent as float32. 32: off.
    make_update: (Trained) -> (update, counts). The update is any structure of
      float tensors. None: clients send nothing, and the server's weights stay.
    aggregation_factory: Makes of the updates a pseudo-gradient with the
      structure of the trainable weights, 0 where the weights sum to 0. Its
      measurements are `metrics['aggregator']`. None: the weighted mean.
    begin: (Start) -> Start with `start_model` set. None: clients begin with the
      server's weights.
    client_inputs: Names of further inputs, see `kept.client_data_type`.
    observer: (Start) -> hook on the gradients of the last local epoch.
    correct_gradient: (Start, gradients, weights) -> gradients.
    extra_loss: (Start, weights, batch, `gradients.BatchOutput`) -> scalar that
      is added to the data loss.
    takes_steps: False: gradients are computed at the initial weights, for the
      observer only.
    local_work: Replaces local training, its hooks and numbers of steps.
    method_state: A state of the method on the server, which clients receive.
    kept_slots: What clients keep between rounds, or return, by name.

  Returns:
    The learning process; metrics `client_work`, `aggregator`, `finalizer`.
    What clients keep, or return, is their client output.

  Raises:
    TypeError: If `model` or `client_weighting` is of another type.
    ValueError: If a number is outside what is listed.
  """
  _require_training(
    client_weighting,
    num_local_epochs,
    num_local_steps,
    micro_batch_size,
    max_delta_norm,
  )
  if local_privacy is not None:
    wanted = 'None with local_privacy'
    is_none = micro_batch_size is None
    require(is_none, 'micro_batch_size', wanted, micro_batch_size)
    require(local_work is None, 'local_work', wanted, local_work)
    client_inputs = (*client_inputs, kept.LOCAL_PRIVACY)
  is_quantized = delta_bits != compression.FLOAT_BITS
  if is_quantized:
    require(delta_bits in (8, 4), 'delta_bits', '32, 8 or 4', delta_bits)
    client_inputs = (*client_inputs, kept.ROUNDING_SEED)
  functional_model, initial_weights = _initial_weights(model)
  weights_type = initial_weights.type_signature.result
  slots = dict(kept_slots)
  if keeps_optimizer_state:
    slots[OPTIMIZER_SLOT] = KeptSlot(
      initial=client_optimizer.initialize,
      next=lambda client: client.local.optimizer_state,
    )
  kept_only = {n: slot for n, slot in slots.items() if slot.initial is not None}
  kept_specs = kept.kept_specs(kept_only, functional_model)
  start_of = _starts(
    functional_model,
    model if isinstance(model, ModelSpec) else None,
    *(method_state, kept_only, client_inputs, begin),
  )
  train = local_work or _training(
    client_optimizer if takes_steps else None,
    *(extra_loss, correct_gradient, observer, local_privacy),
    num_local_epochs=num_local_epochs,
    num_local_steps=num_local_steps,
    micro_batch_size=micro_batch_size,
  )

  def client_round(*argument):
    start, dataset = start_of(*argument)
    local = train(start, dataset)
    weight = weight_of(local, client_weighting)
    quantize = None
    if is_quantized:
      quantize = functools.partial(
        compression.quantize,
        bits=delta_bits,
        seed=start.inputs[kept.ROUNDING_SEED].get_single_element(),
      )
    client = Trained(
      *(start, local, weight, max_delta_norm, quantize, micro_batch_size)
    )
    client = client._replace(
      kept_next={name: slot.next(client) for name, slot in slots.items()}
    )
    update, counts = tf.constant(0.0), {}
    if make_update is not None:
      update, counts = make_update(client)
    return client._replace(
      update=update,
      counts={**counts, **start.counts},
      state_terms=method_state.terms(client) if method_state else (),
    )

  client_work = build_client_work(
    functional_model,
    weights_type,
    kept.client_data_type(functional_model, kept_specs, client_inputs),
    client_optimizer,
    client_round,
    method_state,
    returns_output=bool(slots),
  )
  finalizer = build_idle_finalizer(weights_type)
  if make_update is not None:
    finalizer = build_finalizer(server_optimizer, weights_type)
  return FederatedProcess(
    _in_slots(initial_weights, client_work, aggregation_factory, finalizer),
    client_round,
    kept_specs=kept_specs,
    start_model=begin
    and (lambda *argument: start_of(*argument)[0].start_model),
  )


def _require_training(
  client_weighting,
  num_local_epochs,
  num_local_steps,
  micro_batch_size,
  max_delta_norm,
):
  if not isinstance(client_weighting, tff.learning.ClientWeighting):
    raise TypeError(
      '`client_weighting` must be a tff.learning.ClientWeighting, found '
      f'{client_weighting!r}.'
    )
  for name, value, alternative in (
    ('num_local_epochs', num_local_epochs, ''),
    ('num_local_steps', num_local_steps, ' or None'),
    ('micro_batch_size', micro_batch_size, ' or None'),
  ):
    is_left_out = alternative and value is None
    is_count = type(value) is int and value >= 1
    wanted = f'an integer of at least 1{alternative}'
    require(is_left_out or is_count, name, wanted, value)
  is_bound = max_delta_norm is None or 0 < max_delta_norm < float('inf')
  wanted = 'finite and above 0, or None'
  require(is_bound, 'max_delta_norm', wanted, max_delta_norm)


def _in_slots(initial_weights, client_work, aggregation_factory, finalizer):
  """Returns TFF's process of the four slots."""
  if aggregation_factory is None:
    # Without the guard an empty cohort would be 0/0.
    aggregation_factory = tff.aggregators.MeanFactory(no_nan_division=True)
  result_type = client_work.next.type_signature.result.result.member
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(
      initial_weights.type_signature.result
    ),
    client_work,
    aggregation_factory.create(result_type.update, result_type.update_weight),
    finalizer,
  )


def _starts(functional_model, spec, method_state, slots, client_inputs, begin):
  """Returns (arguments of a client's work) -> (start, batches)."""

  def start_of(state, trainable, non_trainable, client_data):
    hparams, state_of_method = split_state(state, method_state)
    dataset, found = kept.split_client_data(client_data, slots, trainable)
    start = Start(
      functional_model,
      spec,
      trainable,
      non_trainable,
      hparams,
      state_of_method,
      found,
      {name: client_data[name] for name in client_inputs},
    )
    return (start if begin is None else begin(start)), dataset

  return start_of


def _training(
  optimizer, extra_loss, correct_gradient, observer, local_privacy, **limits
):
  """Returns (start, batches) -> LocalResult: the loop with a method's hooks."""

  def train(start, dataset):
    def of_start(hook):
      return hook and functools.partial(hook, start)

    return local_training.train(
      start.model,
      optimizer,
      start.hparams,
      start.trainable if start.start_model is None else start.start_model,
      start.non_trainable,
      dataset,
      optimizer_state=start.kept.get(OPTIMIZER_SLOT),
      extra_loss=of_start(extra_loss),
      correct_gradient=of_start(correct_gradient),
      observer=observer and observer(start),
      **(_private(local_privacy, start) if local_privacy else {}),
      **limits,
    )

  return train


def _private(privacy, start):
  """Returns the options of `local_training.train` that make it DP-SGD."""
  given = start.inputs[kept.LOCAL_PRIVACY].get_single_element()
  options = dict(
    gradient_of=functools.partial(
      private_gradients, privacy=privacy, noise_seed=given['noise_seed']
    )
  )
  if privacy.draws_batches:
    options['drawn'] = local_steps.DrawnSteps(
      given['num_examples'], given['num_unobserved']
    )
  return options


def _initial_weights(model):
  """Returns the functional model and a computation of its initial weights.

  Those of a FunctionalModel become constants of the graph, those of a ModelSpec
  are drawn inside it.
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
