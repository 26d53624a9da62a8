"""The client-work slot: what is the same for every method.

It rejects clients that are not finite, weighs clients, keeps the client
optimizer's hyperparameters in the state (so that they can be set between
rounds) and reports. `compose` gives it the round of one client.
"""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds import kept
from tff_fedfish.rounds.client import (
  LocalResult,
  MethodState,
  Structure,
  Trained,
)
from tff_fedfish.rounds.finite import is_all_finite, zero_unless


def split_state(
  state: Structure, method_state: MethodState | None
) -> tuple[Structure, Structure]:
  """Returns the hyperparameters and the method's state, () without one."""
  return (state['hparams'], state['method']) if method_state else (state, ())


@tf.autograph.experimental.do_not_convert
def weight_of(
  local: LocalResult, client_weighting: tff.learning.ClientWeighting
) -> tf.Tensor:
  """Returns w_i of a finite client, float32; 0 without examples."""
  weight = local.num_examples
  if client_weighting is tff.learning.ClientWeighting.UNIFORM:
    weight = weight > 0
  return tf.cast(weight, tf.float32)


@tf.autograph.experimental.do_not_convert
def accepted(client: Trained) -> tuple[Structure, tf.Tensor, tf.Tensor]:
  """Returns what the aggregator is given: (update, w_i, whether it is finite).

  Where the update, the metrics or what the client would keep are not finite,
  the update is zero and w_i 0.
  """
  # The loss too: it may be infinite where its gradient is not.
  is_finite = is_all_finite(
    [client.update, client.local.metrics, client.state_terms, client.kept_next]
  )
  update = zero_unless(is_finite, client.update)
  return update, tf.where(is_finite, client.weight, 0.0), is_finite


def build_client_work(
  functional_model: tff.learning.models.FunctionalModel,
  weights_type: tff.Type,
  data_type: tff.Type,
  client_optimizer: tff.learning.optimizers.Optimizer,
  client_round: Callable[[Structure, Structure, Structure, Any], Trained],
  method_state: MethodState | None = None,
  *,
  returns_output: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
  """Builds client work from one client's round.

  Args:
    functional_model: Gives the metrics.
    weights_type: Type of the model weights (ModelWeights container).
    data_type: Type of a client's argument, see `kept.client_data_type`.
    client_optimizer: Its hyperparameters become the state of this slot; with a
      method state, its entry `hparams`.
    client_round: (state of this slot, trainable, non_trainable, the client's
      argument) -> Trained, plain TensorFlow.
    method_state: Becomes the entry `method` of the state of this slot. None:
      the method has none.
    returns_output: Whether clients return a client output.

  Returns:
    The process. A client whose update or loss is not finite takes part as
    if it had no data: zero update, weight 0, metrics reset, and is counted in
    `num_non_finite_clients`. A client without data has weight 0 and is counted
    in `num_empty_clients`.
  """
  initialize = _initialize(functional_model, client_optimizer, method_state)
  state_type = initialize.type_signature.result.member
  work = tff.tensorflow.computation(
    tf.function(
      _work(functional_model, client_round, method_state, returns_output)
    ),
    (state_type, weights_type, data_type),
  )
  next_state = _next_state(state_type, work, method_state)

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(weights_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, weights, client_data):
    result, metrics, counts, state_terms, output = tff.federated_map(
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
        next_state, (state, tff.federated_sum(state_terms), counts)
      )
      for name in method_state.reported_after:
        measurements[name] = getattr(state.method, name)
    if returns_output:
      measurements['num_client_outputs'] = kept.send_client_output(output)
    return tff.templates.MeasuredProcessOutput(
      state, result, tff.federated_zip(measurements)
    )

  get_hparams, set_hparams = _hparams_functions(state_type, method_state)
  return tff.learning.templates.ClientWorkProcess(
    initialize,
    next_fn,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


def _initialize(functional_model, client_optimizer, method_state):
  hparams = client_optimizer.get_hparams(
    client_optimizer.initialize(tf.TensorSpec([], tf.float32))
  )

  # In the graph: as constants, a method's state could be as large as the model.
  @tff.tensorflow.computation
  def initial_state():
    if not method_state:
      return hparams
    method = method_state.initial(kept.trainable_specs(functional_model))
    return collections.OrderedDict(
      hparams=hparams, method=collections.OrderedDict(method)
    )

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial_state, tff.SERVER)

  return initialize


def _hparams_functions(state_type, method_state):
  hparams_type = state_type['hparams'] if method_state else state_type

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    return split_state(state, method_state)[0]

  @tff.tensorflow.computation(state_type, hparams_type)
  def set_hparams(state, hparams):
    if not method_state:
      return hparams
    return collections.OrderedDict(hparams=hparams, method=state['method'])

  return get_hparams, set_hparams


def _work(functional_model, client_round, method_state, returns_output):
  """Returns what a client does, in plain TensorFlow."""

  def work(state, weights, client_data):
    client = client_round(
      state, weights.trainable, weights.non_trainable, client_data
    )
    num_examples = client.local.num_examples
    update, weight, is_finite = accepted(client)
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
    state_terms, output = client.state_terms, ()
    has_data = tf.logical_and(is_finite, num_examples > 0)
    if method_state:
      state_terms = zero_unless(has_data, state_terms)
    if returns_output:
      output = kept.client_output(client.kept_next, has_data)
    return result, metrics, counts, state_terms, output

  return work


def _next_state(state_type, work, method_state):
  if not method_state:
    return None
  _, _, counts_type, state_terms_type, _ = work.type_signature.result

  @tff.tensorflow.computation(state_type, state_terms_type, counts_type)
  @tf.function
  def next_state(state, sums, counts):
    return collections.OrderedDict(
      hparams=state['hparams'],
      method=method_state.next(state['method'], sums, counts),
    )

  return next_state
