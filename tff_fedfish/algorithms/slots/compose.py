"""Composes a method's own parts with the ones that all methods share."""

from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tff_fedfish.algorithms.slots.client_work import (
  ClientUpdate,
  build_client_work,
)
from tff_fedfish.algorithms.slots.finalizer import build_finalizer
from tff_fedfish.algorithms.slots.initial_weights import (
  Model,
  build_initial_weights,
)


def compose(
  model: Model,
  *,
  client_optimizer: tff.learning.optimizers.Optimizer,
  server_optimizer: tff.learning.optimizers.Optimizer,
  client_weighting: tff.learning.ClientWeighting,
  client_update: Callable[..., ClientUpdate],
  aggregation_factory: tff.aggregators.WeightedAggregationFactory,
) -> tff.learning.templates.LearningProcess:
  """Builds the process of a method.

  Args:
    model: A FunctionalModel or a ModelSpec.
    client_optimizer: The client optimizer.
    server_optimizer: The server optimizer.
    client_weighting: How clients are weighed against each other.
    client_update: (functional_model, hparams, trainable, non_trainable,
      dataset) -> ClientUpdate.
    aggregation_factory: Turns client updates into a pseudo-gradient.

  Returns:
    The learning process.
  """
  functional_model, initial_weights = build_initial_weights(model)
  weights_type = initial_weights.type_signature.result

  def update(*arguments: Any) -> ClientUpdate:
    return client_update(functional_model, *arguments)

  client_work = build_client_work(
    functional_model, weights_type, client_optimizer, client_weighting, update
  )
  result_type = client_work.next.type_signature.result.result.member
  return tff.learning.templates.compose_learning_process(
    initial_weights,
    tff.learning.templates.build_broadcast_process(weights_type),
    client_work,
    aggregation_factory.create(result_type.update, result_type.update_weight),
    build_finalizer(server_optimizer, weights_type),
  )


def require_local_epochs(num_local_epochs: int) -> None:
  """Raises ValueError unless `num_local_epochs` is an integer >= 1."""
  if not isinstance(num_local_epochs, int) or num_local_epochs < 1:
    raise ValueError(
      '`num_local_epochs` must be an integer of at least 1, found '
      f'{num_local_epochs!r}.'
    )
