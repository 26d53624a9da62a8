"""Composes a method's own parts with the ones that all methods share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import local_training
from tff_fedfish.algorithms.slots.client_work import (
  ClientUpdate,
  build_client_work,
)
from tff_fedfish.algorithms.slots.delta_norm import clip_to_norm
from tff_fedfish.algorithms.slots.finalizer import build_finalizer
from tff_fedfish.algorithms.slots.initial_weights import (
  Model,
  build_initial_weights,
)
from tff_fedfish.algorithms.slots.trained_models import FederatedProcess

Structure = Any


class TrainedClient(NamedTuple):
  """A client after local training, from which a method makes its update.

  Attributes:
    model: The functional model.
    initial_trainable: Trainable weights that the server sent.
    trainable: Final trainable weights.
    non_trainable: Weights held fixed.
    dataset: The client's batches.
    observation: What the method's observer saw; None without one.
    max_delta_norm: Bound on the norm of `model_delta`; None: no bound.
  """

  model: tff.learning.models.FunctionalModel
  initial_trainable: Structure
  trainable: Structure
  non_trainable: Structure
  dataset: tf.data.Dataset
  observation: Structure
  max_delta_norm: float | None

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
        tf.subtract, self.initial_trainable, self.trainable
      )
    if self.max_delta_norm is None:
      return delta, {}
    delta, is_clipped = clip_to_norm(delta, self.max_delta_norm)
    return delta, {'num_clipped_clients': tf.cast(is_clipped, tf.int32)}


def compose(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  num_local_epochs: int,
  client_weighting: tff.learning.ClientWeighting,
  make_update: Callable[
    [TrainedClient], tuple[Structure, Mapping[str, tf.Tensor]]
  ],
  aggregation_factory: tff.aggregators.WeightedAggregationFactory,
  build_observer: Callable[[Structure], local_training.GradientObserver]
  | None = None,
  max_delta_norm: float | None = None,
) -> FederatedProcess:
  """Builds the process of a method.

  Args:
    model: A FunctionalModel or a ModelSpec.
    client_optimizer: The client optimizer.
    server_optimizer: The server optimizer.
    num_local_epochs: E, >= 1.
    client_weighting: How clients are weighed against each other.
    make_update: From what a client trained, what it sends and what it counts:
      the counts of `TrainedClient.model_delta`.
    aggregation_factory: Turns these into a pseudo-gradient.
    build_observer: From the initial trainable weights, a hook on the gradients
      of the last local epoch. None: no hook.
    max_delta_norm: Bound on the global L2 norm of a client's delta, > 0. None:
      no bound.

  Returns:
    The learning process; its `trained_models` gives the clients' models.

  Raises:
    ValueError: If `num_local_epochs` is not an integer >= 1, or
      `max_delta_norm` is not above 0.
  """
  if not isinstance(num_local_epochs, int) or num_local_epochs < 1:
    raise ValueError(
      '`num_local_epochs` must be an integer of at least 1, found '
      f'{num_local_epochs!r}.'
    )
  if max_delta_norm is not None and not max_delta_norm > 0:
    raise ValueError(
      f'`max_delta_norm` must be above 0 or None, found {max_delta_norm!r}.'
    )
  functional_model, initial_weights = build_initial_weights(model)
  weights_type = initial_weights.type_signature.result

  def client_update(hparams, trainable, non_trainable, dataset):
    local = local_training.train(
      functional_model,
      client_optimizer,
      hparams,
      trainable,
      non_trainable,
      dataset,
      num_local_epochs=num_local_epochs,
      observer=build_observer(trainable) if build_observer else None,
    )
    trained = TrainedClient(
      model=functional_model,
      initial_trainable=trainable,
      trainable=local.trainable,
      non_trainable=non_trainable,
      dataset=dataset,
      observation=local.observation,
      max_delta_norm=max_delta_norm,
    )
    update, counts = make_update(trained)
    return ClientUpdate(
      local.trainable, update, local.num_examples, local.metrics, counts
    )

  client_work = build_client_work(
    functional_model,
    weights_type,
    client_optimizer,
    client_weighting,
    client_update,
  )
  result_type = client_work.next.type_signature.result.result.member
  process = tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    client_work,
    aggregation_factory.create(result_type.update, result_type.update_weight),
    build_finalizer(server_optimizer, weights_type),
  )
  return FederatedProcess(process, client_update, client_weighting)
