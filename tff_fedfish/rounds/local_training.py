"""Local training and local evaluation of one client, in plain TensorFlow.

Every method trains with the one loop here and differs by hooks. A `model` is
anything with `predict_on_batch`, `loss` and the metrics functions of
`tff.learning.models.FunctionalModel`; an `optimizer` anything with
`initialize`, `set_hparams` and `next` of `tff.learning.optimizers.Optimizer`.

The order inside a step is fixed:

  1. the mean data loss of the batch, plus `extra_loss`
  2. its gradient; that of only the data loss goes to the `observer`
  3. `correct_gradient`
  4. the optimizer, which clips what it is given and decays the weights

DP-SGD replaces steps 1 and 2 by `gradient_of` (`private_gradients.py`), whose
result also goes to the `observer`.

The functions are to be called while a `tf.function` is traced; AutoGraph makes
graph loops of `fold`. Functions that have no loop and call no hook are marked
`do_not_convert`: converting them takes seconds before the first round.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedfish.rounds import local_steps
from tff_fedfish.rounds.client import LocalResult, Structure
from tff_fedfish.rounds.fold import fold
from tff_fedfish.rounds.gradients import (
  BatchGradients,
  BatchOutput,
  ExtraLoss,
  batch_gradients,
  has_feature,
  num_rows,
  split_batch,
)

NOISE_SEED = 'noise_seed'
"""Key of `x`, where that is a mapping: int32 [batch, 2], seeds of dropout and
the like. `train` gives every step other seeds."""


class GradientObserver(NamedTuple):
  """A hook that sees the gradients of the data loss in the last local steps."""

  initial: Structure
  """The observation before the first gradient."""
  observe: Callable[[Structure, Structure, tf.Tensor], Structure]
  """(observation, gradients, number of rows in the batch) -> observation; all
  are finished tensors, never IndexedSlices."""


# (gradients, weights) -> gradients.
CorrectGradient = Callable[[Structure, Structure], Structure]

# As `batch_gradients` up to its metrics, then the number of the step, an int32
# scalar that counts from 0, and the keywords `prepare` and `extra_loss`.
GradientOf = Callable[..., BatchGradients]


class _State(NamedTuple):
  """State of local training, which a step changes."""

  weights: Structure
  optimizer: Structure
  metrics: Structure
  num_rows: tf.Tensor
  loss_sum: tf.Tensor
  num_steps: tf.Tensor


def train(
  model: Any,
  optimizer: Any,
  hparams: Structure,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
  *,
  num_local_epochs: int | tf.Tensor,
  num_local_steps: int | None = None,
  micro_batch_size: int | None = None,
  optimizer_state: Structure = None,
  extra_loss: ExtraLoss | None = None,
  correct_gradient: CorrectGradient | None = None,
  observer: GradientObserver | None = None,
  gradient_of: GradientOf | None = None,
  drawn: local_steps.DrawnSteps | None = None,
) -> LocalResult:
  """Trains on one client's data: E passes of batch steps.

  Args:
    model: See the module.
    optimizer: The client optimizer. None: the weights stay as they are.
    hparams: Its hyperparameters, as `optimizer.get_hparams` gives them.
    trainable: Weights at the start.
    non_trainable: Weights held fixed.
    dataset: Batches. Iterating it again yields the same batches. Noise seeds in
      them are folded with the number of the step, counted from 0 over all
      epochs: the same batch meets other noise in another epoch.
    num_local_epochs: E, >= 1; an int, or an int64 tensor where there is no
      observer.
    num_local_steps: H, >= 1: training stops after H steps, or after E passes if
      that is earlier. None: no limit.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1, see `batch_gradients`. Every slice draws its noise from the seed of its
      own first row. None: all.
    optimizer_state: The optimizer's state at the start, such as that of the
      client's last round; its hyperparameters are replaced. None: a fresh one.
    extra_loss: (weights, batch, output) -> scalar that is trained on beside the
      data loss. Neither the metrics nor the observer know of it.
    correct_gradient: (gradients, weights) -> the gradients that the optimizer
      is given.
    observer: Hook on the gradients of the last pass. With a limit or repeated
      rows: of the last ceil(n / B) steps (n: `num_examples` of the result, B:
      rows of a full batch).
    gradient_of: Replaces the gradient of a batch; `micro_batch_size` is not
      read then.
    drawn: `dataset` holds the batches of all steps, some perhaps without rows:
      neither `num_local_epochs` nor `num_local_steps` is read. None: `dataset`
      holds one pass.
  """
  steps = local_steps.plan(
    dataset,
    num_local_epochs,
    num_local_steps,
    drawn,
    has_observer=observer is not None,
  )

  def step(state, batch, is_observed):
    num_steps = state.num_steps
    options = dict(
      prepare=lambda part: at_step(part, num_steps), extra_loss=extra_loss
    )
    arguments = (model, state.weights, non_trainable, batch, state.metrics)
    if gradient_of is not None:
      found = gradient_of(*arguments, num_steps, **options)
    else:
      found = batch_gradients(
        *arguments,
        training=True,
        micro_batch_size=micro_batch_size,
        with_data=is_observed,
        **options,
      )
    gradients = found.total
    if correct_gradient is not None:
      gradients = correct_gradient(gradients, state.weights)
    weights, optimizer_state = state.weights, state.optimizer
    if optimizer is not None:
      optimizer_state, weights = optimizer.next(
        optimizer_state, weights, gradients
      )
    state = _State(
      weights,
      optimizer_state,
      found.metrics,
      state.num_rows + num_rows(batch),
      state.loss_sum + tf.cast(found.loss, tf.float32),
      num_steps + 1,
    )
    return state, found

  state = _State(
    trainable,
    _optimizer_state(optimizer, optimizer_state, hparams, trainable),
    model.initialize_metrics_state(),
    num_rows=tf.constant(0, tf.int64),
    loss_sum=tf.constant(0.0),
    num_steps=tf.constant(0),
  )
  state, gradient_sums = _loop(step, state, steps, observer)
  num_examples = steps.num_examples
  if num_examples is None:
    # Every pass has the same rows, so the division is exact.
    num_examples = state.num_rows // num_local_epochs
  return LocalResult(
    trainable=state.weights,
    metrics=state.metrics,
    num_examples=num_examples,
    gradient_sums=gradient_sums,
    mean_loss=tf.math.divide_no_nan(
      state.loss_sum, tf.cast(state.num_steps, tf.float32)
    ),
    dataset=steps.trained_on,
    optimizer_state=state.optimizer,
    num_steps=state.num_steps,
  )


def evaluate(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
) -> Structure:
  """Returns the model's metrics state over one pass, without training."""

  def update(metrics, batch):
    x, y = split_batch(batch)
    predictions = model.predict_on_batch((trainable, non_trainable), x, False)
    output = BatchOutput(
      model.loss(output=predictions, label=y),
      predictions,
      num_rows(batch),
    )
    return model.update_metrics_state(metrics, labels=y, batch_output=output)

  return fold(dataset, model.initialize_metrics_state(), update)


@tf.autograph.experimental.do_not_convert
def at_step(batch: Any, step: tf.Tensor) -> Any:
  """Returns the batch with the seeds of noise of one step.

  Args:
    batch: The batch; without seeds it is returned as it is.
    step: Scalar int32, the local step, counted from 0.
  """
  if not has_feature(batch, NOISE_SEED):
    return batch
  x, y = split_batch(batch)
  seeds = x[NOISE_SEED]
  seed = tf.random.experimental.stateless_fold_in(seeds[0], step)
  noise_seed = {NOISE_SEED: tf.broadcast_to(seed, tf.shape(seeds))}
  return collections.OrderedDict(x={**x, **noise_seed}, y=y)


def _loop(step, state, steps, observer):
  """Takes all steps; returns the state and the sums of the observer."""

  def take(state, batch):
    state, _ = step(state, batch, False)
    return state

  def take_observed(carried, batch):
    state, gradient_sums = carried
    state, found = step(state, batch, True)
    return state, observer.observe(
      gradient_sums, found.data, found.num_examples
    )

  if steps.unobserved is not None:
    state = fold(steps.unobserved, state, take)
  if observer is None:
    return state, None
  return fold(steps.observed, (state, observer.initial), take_observed)


@tf.autograph.experimental.do_not_convert
def _optimizer_state(optimizer, state, hparams, trainable):
  if optimizer is None:
    return ()
  if state is None:
    specs = tf.nest.map_structure(
      lambda w: tf.TensorSpec(w.shape, w.dtype), trainable
    )
    state = optimizer.initialize(specs)
  return optimizer.set_hparams(state, hparams)
