"""The client-work slot: what is the same for every method.

Guards against non-finite and empty clients, weighs, keeps the client
optimizer's hyperparameters in the state (so that they can be set between
rounds) and reports. What a client computes is a method's own `client_update`.
"""

import collections
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds import kept as client_io
from tff_fedfish.rounds.bounds import is_all_finite, zero_unless
from tff_fedfish.rounds.local_training import LocalResult

Structure = Any


class ClientUpdate(NamedTuple):
  """The computation of one client.

  Attributes:
    local: Result of local training.
    update: Structure for the aggregator; every leaf float.
    counts: Int32 scalars by name, to be summed over the clients that are
      finite; reported beside `num_empty_clients`.
    summands: The method state's, see `MethodState`; () without one.
    kept: Structures by slot that the client keeps; empty without slots.
  """

  local: LocalResult
  update: Structure
  counts: Mapping[str, tf.Tensor]
  summands: Structure = ()
  kept: Mapping[str, Structure] = {}


class MethodState(NamedTuple):
  """A method's own state on the server, which every client receives.

  Attributes:
    initial: (specs of the trainable weights) -> tensors or numbers by field
      name, before the first round.
    summands: (the trained client) -> structure of float tensors, to be summed
      over the clients that have data and are finite.
    next: (state, sums, counts) -> state after a round, plain TensorFlow. The
      counts are those of `metrics['client_work']['clients']`.
    reported: Fields that are metrics, too, as they were when the round began.
    reported_after: Fields that are metrics as they are when it ends.
  """

  initial: Callable[[Structure], Mapping[str, Any]]
  summands: Callable[[Any], Structure]
  next: Callable[[Structure, Structure, Mapping[str, tf.Tensor]], Structure]
  reported: tuple[str, ...] = ()
  reported_after: tuple[str, ...] = ()


def split_state(
  state: Structure, method_state: MethodState | None
) -> tuple[Structure, Structure]:
  """Returns the hyperparameters and the method's state, () without one."""
  return (state['hparams'], state['method']) if method_state else (state, ())


@tf.autograph.experimental.do_not_convert
def accepted(
  client: ClientUpdate, client_weighting: tff.learning.ClientWeighting
) -> tuple[Structure, tf.Tensor, tf.Tensor]:
  """Returns (update, w_i, whether update and metrics are finite).

  That is what the aggregator is given of a client: if they, or what the client
  would keep, are not finite, the update is zero and w_i 0.
  """
  # The loss too: it may be infinite where its gradient is not.
  is_finite = is_all_finite(
    [client.update, client.local.metrics, client.summands, client.kept]
  )
  update = zero_unless(is_finite, client.update)
  weight = weight_of(client.local, client_weighting)
  return update, tf.where(is_finite, weight, 0.0), is_finite


@tf.autograph.experimental.do_not_convert
def weight_of(
  local: LocalResult, client_weighting: tff.learning.ClientWeighting
) -> tf.Tensor:
  """Returns w_i of a finite client, float32; 0 without examples."""
  weight = local.num_examples
  if client_weighting is tff.learning.ClientWeighting.UNIFORM:
    weight = weight > 0
  return tf.cast(weight, tf.float32)


def build_client_work(
  functional_model: tff.learning.models.FunctionalModel,
  weights_type: tff.Type,
  client_optimizer: tff.learning.optimizers.Optimizer,
  client_weighting: tff.learning.ClientWeighting,
  client_update: Callable[[Structure, Structure, Structure, Any], ClientUpdate],
  method_state: MethodState | None = None,
  kept_specs: Mapping[str, tuple[tf.TensorSpec, ...]] | None = None,
  *,
  client_inputs: Mapping[str, Structure] = types.MappingProxyType({}),
  returns_output: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
  """Builds client work from one client's computation.

  Args:
    functional_model: Gives the data's type and the metrics.
    weights_type: Type of the model weights (ModelWeights container).
    client_optimizer: Its hyperparameters become the state of this slot; with a
      method state, its entry `hparams`.
    client_weighting: NUM_EXAMPLES (rows of one pass) or UNIFORM.
    client_update: (state of this slot, trainable, non_trainable, the client's
      argument) -> ClientUpdate, plain TensorFlow.
    method_state: Becomes the entry `method` of the state of this slot. None:
      the method has none.
    kept_specs: Tensors that clients keep, as `client_io.kept_specs` returns
      them. None or empty: clients keep nothing.
    client_inputs: As `client_io.input_specs` returns them.
    returns_output: Whether clients return a client output.

  Returns:
    The process. A client whose update or loss is not finite takes part as
    if it had no data: zero update, weight 0, metrics reset, and is counted in
    `num_non_finite_clients`. A client without data has weight 0 and is counted
    in `num_empty_clients`.

  Raises:
    TypeError: If `client_weighting` is not a `tff.learning.ClientWeighting`.
  """
  if not isinstance(client_weighting, tff.learning.ClientWeighting):
    raise TypeError(
      '`client_weighting` must be a tff.learning.ClientWeighting, found '
      f'{client_weighting!r}.'
    )
  kept_specs = kept_specs or {}
  data_type = client_io.client_data_type(
    functional_model.input_spec, kept_specs, client_inputs
  )
  initial_hparams = client_optimizer.get_hparams(
    client_optimizer.initialize(tf.TensorSpec([], tf.float32))
  )

  @tff.federated_computation
  def initialize():
    if method_state:
      return tff.federated_eval(
        _initial_state(initial_hparams, method_state, functional_model),
        tff.SERVER,
      )
    return tff.federated_value(initial_hparams, tff.SERVER)

  state_type = initialize.type_signature.result.member
  hparams_type = state_type['hparams'] if method_state else state_type

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return split_state(state, method_state)[0]

  @tff.tensorflow.computation(state_type, hparams_type)
  def set_hparams(state, hparams):
    if not method_state:
      return hparams
    return collections.OrderedDict(hparams=hparams, method=state['method'])

  @tff.tensorflow.computation(state_type, weights_type, data_type)
  @tf.function
  def work(state, weights, client_data):
    client = client_update(
      state, weights.trainable, weights.non_trainable, client_data
    )
    num_examples = client.local.num_examples
    update, weight, is_finite = accepted(client, client_weighting)
    metrics = tf.nest.map_structure(
      lambda fresh, value: tf.where(is_finite, value, fresh),
      functional_model.initialize_metrics_state(),
      client.local.metrics,
    )
    counts = collections.OrderedDict(
      # Not `==`: in the graphs TFF builds it compares identities.
      num_empty_clients=tf.cast(tf.equal(num_examples, 0), tf.int32),
      num_non_finite_clients=tf.cast(tf.logical_not(is_finite), tf.int32),
      **{
        name: tf.where(is_finite, count, 0)
        for name, count in client.counts.items()
      },
    )
    result = tff.learning.templates.ClientResult(update, weight)
    summands, output = client.summands, ()
    has_data = tf.logical_and(is_finite, num_examples > 0)
    if method_state:
      summands = zero_unless(has_data, summands)
    if returns_output:
      output = client_io.client_output(client.kept, has_data)
    return result, metrics, counts, summands, output

  if method_state:
    _, _, counts_type, summands_type, _ = work.type_signature.result

    @tff.tensorflow.computation(state_type, summands_type, counts_type)
    @tf.function
    def next_state(state, sums, counts):
      return collections.OrderedDict(
        hparams=state['hparams'],
        method=method_state.next(state['method'], sums, counts),
      )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, client_data):
    result, metrics, counts, summands, output = tff.federated_map(
      work, (tff.federated_broadcast(state), weights, client_data)
    )
    train = tff.learning.metrics.sum_then_finalize(
      functional_model.finalize_metrics
    )(metrics)
    counts = tff.federated_sum(counts)
    measurements = collections.OrderedDict(train=train, clients=counts)
    if method_state:
      for name in method_state.reported:
        measurements[name] = getattr(state.method, name)
      state = tff.federated_map(
        next_state, (state, tff.federated_sum(summands), counts)
      )
      for name in method_state.reported_after:
        measurements[name] = getattr(state.method, name)
    if returns_output:
      measurements['num_client_outputs'] = client_io.send_client_output(output)
    return tff.templates.MeasuredProcessOutput(
      state, result, tff.federated_zip(measurements)
    )

  return tff.learning.templates.ClientWorkProcess(
    initialize,
    next_fn,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


def _initial_state(hparams, method_state, functional_model):
  """Returns a computation, as constants could be as large as the model."""

  @tff.tensorflow.computation
  def initial_state():
    specs = client_io.trainable_specs(functional_model)
    return collections.OrderedDict(
      hparams=hparams,
      method=collections.OrderedDict(method_state.initial(specs)),
    )

  return initial_state
