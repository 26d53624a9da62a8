"""A learning process that also gives the models its clients train."""

import collections
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish.algorithms.slots.client_work import ClientUpdate, accepted

Structure = Any


class FederatedProcess(tff.learning.templates.LearningProcess):
  """A `tff.learning.templates.LearningProcess` with `trained_models`."""

  def __init__(
    self,
    process: tff.learning.templates.LearningProcess,
    client_update: Callable[
      [Structure, Structure, Structure, tf.data.Dataset], ClientUpdate
    ],
    client_weighting: tff.learning.ClientWeighting,
  ):
    """Extends a process by what its client work was built from."""
    super().__init__(
      process.initialize,
      process.next,
      process.get_model_weights,
      process.set_model_weights,
      get_hparams_fn=process.get_hparams,
      set_hparams_fn=process.set_hparams,
    )
    self._client_update = client_update
    self._client_weighting = client_weighting

  @functools.cached_property
  def trained_models(self) -> tff.Computation:
    """A TFF computation of the models that the clients of a round train.

    Its type is (S@SERVER, {D*}@CLIENTS) -> {T}@CLIENTS, the arguments those of
    `next`, so that the clients train on the weights, hyperparameters and other
    broadcast state of the round that would follow. Called, it returns one T per
    client in the order of the data. They are all in memory then: a caller with
    large models passes one client at a time.

    T is an OrderedDict of
    - `trainable`: the trainable weights after local training, finite or not;
    - `client_weight`: float32 scalar >= 0, w_i; 0 if the client has no data,
      or its update or loss is not finite;
    - `update`: what the aggregator takes, zero if that is not finite. For
      FedAvg the model delta, for FedFish a `DeltaAndFisher`.

    It is traced when it is first asked for, which takes as long as for `next`.
    """
    state_at_server, client_data = self.next.type_signature.parameter
    state_type = state_at_server.member

    @tff.tensorflow.computation(state_type)
    def to_broadcast(state):
      return state.client_work, state.global_model_weights

    @tff.tensorflow.computation(
      *to_broadcast.type_signature.result, client_data.member
    )
    @tf.function
    def train(client_work_state, weights, dataset):
      client = self._client_update(
        client_work_state, weights.trainable, weights.non_trainable, dataset
      )
      update, client_weight, _ = accepted(client, self._client_weighting)
      return collections.OrderedDict(
        trainable=client.local.trainable,
        client_weight=client_weight,
        update=update,
      )

    @tff.federated_computation(state_at_server, client_data)
    def trained_models(state, data):
      sent = tff.federated_broadcast(tff.federated_map(to_broadcast, state))
      return tff.federated_map(train, (sent[0], sent[1], data))

    return trained_models
