"""A learning process that also gives the models of its clients."""

import collections
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.rounds.client import Structure, Trained
from tff_fedfish.rounds.client_work import accepted


class FederatedProcess(tff.learning.templates.LearningProcess):
  """A `LearningProcess` with `trained_models` and what clients keep.

  The argument of a client is D = B*, its batches. Where clients keep tensors it
  is <data=B*, state=<SLOT=T*, ...>>: per slot a sequence with what the client
  kept in its last round, empty in its first. `next` does not return what
  clients keep: `tff_fedfish.collect_client_outputs` collects it, in the context
  of `set_in_process_context`.
  """

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    client_round: Callable[[Structure, Structure, Structure, Any], Trained],
    kept_specs: Mapping[str, tuple[tf.TensorSpec, ...]],
    start_model: Callable[..., Structure] | None = None,
  ):
    """Extends a process.

    Args:
      process: The process.
      client_round: The round of one client, see `build_client_work`.
      kept_specs: The flat tensors that a client keeps, by slot.
      start_model: From the same arguments, the model with which a client begins
        a round. None: the server's.
    """
    super().__init__(
      process.initialize,
      process.next,
      process.get_model_weights,
      process.set_model_weights,
      get_hparams_fn=process.get_hparams,
      set_hparams_fn=process.set_hparams,
    )
    self.kept_specs = kept_specs
    self._client_round = client_round
    self._start_model = start_model

  @functools.cached_property
  def trained_models(self) -> tff.Computation:
    """A TFF computation of the models that the clients of a round train.

    Its type is (S@SERVER, {D}@CLIENTS) -> {T}@CLIENTS, the arguments those of
    `next`, so that the clients train on the weights, hyperparameters and other
    broadcast state of the round that would follow. Called, it returns one T per
    client in the order of the data. They are all in memory then: a caller with
    large models passes one client at a time.

    T is an OrderedDict of
    - `trainable`: the trainable weights after local training, finite or not;
    - `client_weight`: float32 scalar >= 0, w_i; 0 if the client has no data,
      or its update or loss is not finite;
    - `update`: what the aggregator takes, zero if that is not finite.

    It is traced when it is first asked for, which takes as long as for `next`.
    """

    def result(*argument):
      client = self._client_round(*argument)
      update, client_weight, _ = accepted(client)
      return collections.OrderedDict(
        trainable=client.local.trainable,
        client_weight=client_weight,
        update=update,
      )

    return self._at_clients(result)

  @functools.cached_property
  def personal_models(self) -> tff.Computation:
    """A TFF computation of the models with which clients begin a round.

    Its type is that of `trained_models`, T the trainable weights. Nothing is
    trained.

    Raises:
      AttributeError: If clients begin with the server's weights.
    """
    if self._start_model is None:
      raise AttributeError('Clients of this process begin with the same model.')
    return self._at_clients(self._start_model)

  def _at_clients(self, result):
    """Returns a computation with the arguments of `next`."""
    state_at_server, data_at_clients = self.next.type_signature.parameter

    @tff.tensorflow.computation(state_at_server.member)
    def to_broadcast(state):
      return state.client_work, state.global_model_weights

    @tff.tensorflow.computation(
      *to_broadcast.type_signature.result, data_at_clients.member
    )
    @tf.function
    def train(client_work_state, weights, data):
      return result(
        client_work_state, weights.trainable, weights.non_trainable, data
      )

    @tff.federated_computation(state_at_server, data_at_clients)
    def at_clients(state, data):
      sent = tff.federated_broadcast(tff.federated_map(to_broadcast, state))
      return tff.federated_map(train, (sent[0], sent[1], data))

    return at_clients
