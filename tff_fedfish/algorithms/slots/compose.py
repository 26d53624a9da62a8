"""Composes a method's own parts with the ones that all methods share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedfish import local_training
from tff_fedfish.algorithms.slots.client_work import (
  ClientUpdate,
  MethodState,
  build_client_work,
  split_state,
)
from tff_fedfish.algorithms.slots.delta_norm import clip_to_norm
from tff_fedfish.algorithms.slots.finalizer import build_finalizer
from tff_fedfish.algorithms.slots.initial_weights import (
  Model,
  build_initial_weights,
)
from tff_fedfish.algorithms.slots.trained_models import FederatedProcess
from tff_fedfish.batch_gradients import ExtraLoss

Structure = Any


class TrainedClient(NamedTuple):
  """A client after local training, from which a method makes its update.

  Attributes:
    model: The functional model.
    initial_trainable: Trainable weights that the server sent.
    trainable: Final trainable weights.
    non_trainable: Weights held fixed.
    dataset: The rows that were trained on, each once, in batches.
    num_examples: Int64, their number.
    mean_loss: Float32, the mean over the local steps of the data loss.
    observation: What the method's observer saw; None without one.
    max_delta_norm: Bound on the norm of what is sent; None: no bound.
  """

  model: tff.learning.models.FunctionalModel
  initial_trainable: Structure
  trainable: Structure
  non_trainable: Structure
  dataset: tf.data.Dataset
  num_examples: tf.Tensor
  mean_loss: tf.Tensor
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
    return self.bounded(delta)

  def bounded(
    self, delta: Structure
  ) -> tuple[Structure, Mapping[str, tf.Tensor]]:
    """Returns `delta` within the bound, and counts as `model_delta` does."""
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
  build_correct_gradient: Callable[
    [Structure, Structure], local_training.CorrectGradient
  ]
  | None = None,
  build_extra_loss: Callable[[Structure, Structure], ExtraLoss] | None = None,
  method_state: MethodState | None = None,
  max_delta_norm: float | None = None,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
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
    build_correct_gradient: From the initial trainable weights and the method's
      state, `correct_gradient` of `local_training.train`. None: no hook.
    build_extra_loss: Its `extra_loss`, from the same. None: no hook.
    method_state: A state of the method, which clients receive. None: there is
      none, and hooks are given ().
    max_delta_norm: Bound on the global L2 norm of a client's delta, > 0. None:
      no bound.
    num_local_steps: H, >= 1, after which a client stops. None: no limit.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1. None: all.

  Returns:
    The learning process; its `trained_models` gives the clients' models.

  Raises:
    ValueError: If `num_local_epochs`, `num_local_steps` or `micro_batch_size`
      is not an integer >= 1, or `max_delta_norm` is not above 0.
  """
  _require_positive_integer('num_local_epochs', num_local_epochs)
  for name, value in (
    ('num_local_steps', num_local_steps),
    ('micro_batch_size', micro_batch_size),
  ):
    if value is not None:
      _require_positive_integer(name, value, ' or None')
  if max_delta_norm is not None and not max_delta_norm > 0:
    raise ValueError(
      f'`max_delta_norm` must be above 0 or None, found {max_delta_norm!r}.'
    )
  functional_model, initial_weights = build_initial_weights(model)
  weights_type = initial_weights.type_signature.result

  def client_update(work_state, trainable, non_trainable, dataset):
    hparams, state_of_method = split_state(work_state, method_state)

    def hook(build):
      return build(trainable, state_of_method) if build else None

    local = local_training.train(
      functional_model,
      client_optimizer,
      hparams,
      trainable,
      non_trainable,
      dataset,
      num_local_epochs=num_local_epochs,
      num_local_steps=num_local_steps,
      micro_batch_size=micro_batch_size,
      extra_loss=hook(build_extra_loss),
      correct_gradient=hook(build_correct_gradient),
      observer=build_observer(trainable) if build_observer else None,
    )
    trained = TrainedClient(
      model=functional_model,
      initial_trainable=trainable,
      trainable=local.trainable,
      non_trainable=non_trainable,
      dataset=local.dataset,
      num_examples=local.num_examples,
      mean_loss=local.mean_loss,
      observation=local.observation,
      max_delta_norm=max_delta_norm,
    )
    update, counts = make_update(trained)
    return ClientUpdate(
      local.trainable,
      update,
      local.num_examples,
      local.metrics,
      counts,
      method_state.summands(trained) if method_state else (),
    )

  client_work = build_client_work(
    functional_model,
    weights_type,
    client_optimizer,
    client_weighting,
    client_update,
    method_state,
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


def _require_positive_integer(name, value, alternative=''):
  if not isinstance(value, int) or value < 1:
    raise ValueError(
      f'`{name}` must be an integer of at least 1{alternative}, found '
      f'{value!r}.'
    )
