"""Local training and local evaluation of one client, in plain TensorFlow.

Every method trains with the one loop here and differs by hooks. A `model` is
anything with `predict_on_batch`, `loss` and the metrics functions of
`tff.learning.models.FunctionalModel`; an `optimizer` anything with
`initialize`, `set_hparams` and `next` of `tff.learning.optimizers.Optimizer`.

The order inside a step is fixed:

  1. the mean data loss of the batch, plus `extra_loss`
  2. its gradient; that of the data loss only goes to the `observer`. Or in
     place of both steps `gradient_of`, whose result also is what the `observer`
     is given, as in DP-SGD (`private_gradients.py`)
  3. `correct_gradient`
  4. the optimizer, which clips what it is given and decays the weights

Loops iterate over the dataset (`for batch in iter(dataset)`): reducing it
instead would leave accelerators idle. The functions are to be called while a
`tf.function` is traced; AutoGraph turns the loops into graph loops. One
iteration runs at a time: TensorFlow's ten would keep the activations of as many
batches where, as in an evaluation, none waits for the one before it. Functions
that have no such loop and call no hook are marked `do_not_convert`: converting
them takes seconds before the first round.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedfish.rounds.gradients import (
  BatchGradients,
  BatchOutput,
  ExtraLoss,
  batch_gradients,
  num_rows,
  split_batch,
)

# A nested structure of tensors, as tf.nest understands it.
Structure = Any

NOISE_SEED = 'noise_seed'
"""Key of `x`, where that is a mapping: int32 [batch, 2], seeds of dropout and
the like. `train` gives every step other seeds."""

REPEATED = 'is_repeated'
"""Key of `x`, where that is a mapping: bool [batch], marks the rows that
came before in the same dataset. They are trained on, but not counted."""


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


class DrawnSteps(NamedTuple):
  """A dataset that holds the batches of all steps, in place of one pass."""

  num_examples: tf.Tensor
  """Int64 scalar, the rows that they were drawn from."""
  num_unobserved: tf.Tensor
  """Int64 scalar, the first steps, which no observer sees."""


class LocalResult(NamedTuple):
  """Result of local training."""

  trainable: Structure
  """The trained weights."""
  metrics: Structure
  """The model's metrics state over all local steps."""
  num_examples: tf.Tensor
  """Int64, the rows that were trained on, each counted once."""
  observation: Structure
  """The observer's last observation; None without one."""
  mean_loss: tf.Tensor
  """Float32, the mean over the local steps of the data loss of their batches; 0
  without a step."""
  dataset: tf.data.Dataset
  """The rows that were trained on, each once, in batches."""
  optimizer_state: Structure
  """The optimizer's, after the last step."""
  num_steps: tf.Tensor
  """Int64, the local steps."""


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
  drawn: DrawnSteps | None = None,
) -> LocalResult:
  """Trains on one client's data: E passes of batch steps.

  Args:
    model: See the module.
    optimizer: The client optimizer. None: no step is taken.
    hparams: Its hyperparameters, as `optimizer.get_hparams` gives them.
    trainable: Weights at the start.
    non_trainable: Weights held fixed.
    dataset: Batches. Iterating it again yields the same batches. Noise seeds in
      them are folded with the number of the step, counted from 0 over all
      epochs: the same batch meets other noise in another epoch.
    num_local_epochs: E, >= 1; an int, or an int64 tensor where there is no
      observer.
    num_local_steps: H, >= 1: training stops after so many steps, or after E
      passes if that is earlier. None: no limit.
    micro_batch_size: Rows of a batch that pass through the model at a time, >=
      1, see `batch_gradients`. Every slice draws its noise from the seed of its
      own first row. None: all.
    optimizer_state: The optimizer's state at the start, such as that of the
      client's last round; its hyperparameters are replaced. None: a fresh one.
    extra_loss: (weights, batch, output) -> scalar that is trained on beside the
      data loss. Neither the metrics nor the observer know of it.
    correct_gradient: (gradients, weights) -> the gradients that the optimizer
      is given.
    observer: Hook on the gradients of the last pass. With a limit or with
      `REPEATED` rows: of the last ceil(n / B) steps, n the `num_examples` of
      the result and B the rows of a full batch.
    gradient_of: Replacement for the gradient of a batch, see the module.
      `micro_batch_size` is not read with it.
    drawn: Says that `dataset` holds the batches of all steps, such as drawn
      ones, some of them without rows: neither `num_local_epochs` nor
      `num_local_steps` is read, and the result has its `num_examples`. None: it
      holds one pass.

  Returns:
    The result. A dataset without batches leaves the weights as they were and
    num_examples 0.
  """
  specs = tf.nest.map_structure(
    lambda w: tf.TensorSpec(w.shape, w.dtype), trainable
  )
  if optimizer is not None:
    if optimizer_state is None:
      optimizer_state = optimizer.initialize(specs)
    optimizer_state = optimizer.set_hparams(optimizer_state, hparams)
  if drawn is not None:
    steps = _drawn_steps(dataset, drawn, observer is not None)
  elif num_local_steps is None and not _has_feature(
    dataset.element_spec, REPEATED
  ):
    steps = _whole_passes(dataset, num_local_epochs, observer is not None)
  else:
    steps = _limited_steps(
      dataset, num_local_epochs, num_local_steps, observer is not None
    )
  state = (
    trainable,
    optimizer_state if optimizer is not None else (),
    model.initialize_metrics_state(),
    tf.constant(0, tf.int64),
    tf.constant(0.0),
    tf.constant(0),
  )

  def step(state, batch, is_observed):
    weights, optimizer_state, metrics, num_examples, loss_sum, num_steps = state

    def prepare(part):
      return at_step(part, num_steps)

    if gradient_of is not None:
      found = gradient_of(
        model,
        weights,
        non_trainable,
        batch,
        metrics,
        num_steps,
        prepare=prepare,
        extra_loss=extra_loss,
      )
    else:
      found = batch_gradients(
        model,
        weights,
        non_trainable,
        batch,
        metrics,
        training=True,
        micro_batch_size=micro_batch_size,
        prepare=prepare,
        extra_loss=extra_loss,
        with_data=is_observed,
      )
    gradients = found.total
    if correct_gradient is not None:
      gradients = correct_gradient(gradients, weights)
    if optimizer is not None:
      optimizer_state, weights = optimizer.next(
        optimizer_state, weights, gradients
      )
    state = (
      weights,
      optimizer_state,
      found.metrics,
      num_examples + num_rows(batch),
      loss_sum + tf.cast(found.loss, tf.float32),
      num_steps + 1,
    )
    return state, found

  observation = None
  if steps.unobserved is not None:
    for batch in iter(steps.unobserved):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      state, _ = step(state, batch, False)
  if observer is not None:
    observation = observer.initial
    for batch in iter(steps.observed):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      state, found = step(state, batch, True)
      observation = observer.observe(
        observation, found.data, found.num_examples
      )
  weights, optimizer_state, metrics, num_examples, loss_sum, num_steps = state
  if steps.num_examples is not None:
    num_examples = steps.num_examples
  else:
    # Every pass has the same rows, so the division is exact.
    num_examples //= num_local_epochs
  return LocalResult(
    trainable=weights,
    metrics=metrics,
    num_examples=num_examples,
    observation=observation,
    mean_loss=tf.math.divide_no_nan(loss_sum, tf.cast(num_steps, tf.float32)),
    dataset=steps.trained_on,
    optimizer_state=optimizer_state,
    num_steps=num_steps,
  )


def evaluate(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
) -> Structure:
  """Returns the model's metrics state over one pass, without training."""
  metrics = model.initialize_metrics_state()
  for batch in iter(dataset):
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    x, y = split_batch(batch)
    predictions = model.predict_on_batch((trainable, non_trainable), x, False)
    output = BatchOutput(
      model.loss(output=predictions, label=y),
      predictions,
      num_rows(batch),
    )
    metrics = model.update_metrics_state(metrics, labels=y, batch_output=output)
  return metrics


@tf.autograph.experimental.do_not_convert
def at_step(batch: Any, step: tf.Tensor) -> Any:
  """Returns the batch with the seeds of noise of one step.

  Args:
    batch: The batch; without seeds it is returned as it is.
    step: Scalar int32, the local step, counted from 0.
  """
  if not _has_feature(batch, NOISE_SEED):
    return batch
  x, y = split_batch(batch)
  seeds = x[NOISE_SEED]
  seed = tf.random.experimental.stateless_fold_in(seeds[0], step)
  noise_seed = {NOISE_SEED: tf.broadcast_to(seed, tf.shape(seeds))}
  return collections.OrderedDict(x={**x, **noise_seed}, y=y)


class _Steps(NamedTuple):
  """The batches of all local steps."""

  unobserved: tf.data.Dataset | None
  """Batches of the first steps; None: there are none."""
  observed: tf.data.Dataset | None
  """Batches of the last steps; None without an observer."""
  trained_on: tf.data.Dataset
  """The rows of all of them, each once."""
  num_examples: tf.Tensor | None
  """Their number; None: it is that of one pass."""


@tf.autograph.experimental.do_not_convert
def _whole_passes(dataset, num_local_epochs, has_observer):
  if not has_observer:
    return _Steps(dataset.repeat(num_local_epochs), None, dataset, None)
  unobserved = None
  if num_local_epochs > 1:
    unobserved = dataset.repeat(num_local_epochs - 1)
  return _Steps(unobserved, dataset, dataset, None)


@tf.autograph.experimental.do_not_convert
def _drawn_steps(dataset, drawn, has_observer):
  if not has_observer:
    return _Steps(dataset, None, dataset, drawn.num_examples)
  first = drawn.num_unobserved
  return _Steps(
    dataset.take(first), dataset.skip(first), dataset, drawn.num_examples
  )


def _limited_steps(dataset, num_local_epochs, num_local_steps, has_observer):
  all_steps, one_pass = dataset.repeat(num_local_epochs), dataset
  if num_local_steps is not None:
    all_steps = all_steps.take(num_local_steps)
    one_pass = one_pass.take(num_local_steps)
  num_examples, batch_size = tf.constant(0, tf.int64), tf.constant(1, tf.int64)
  for batch in iter(one_pass):
    num_examples += _num_new_rows(batch)
    batch_size = tf.maximum(batch_size, num_rows(batch))
  trained_on = one_pass
  if _has_feature(dataset.element_spec, REPEATED):
    trained_on = one_pass.unbatch().filter(_is_new).batch(batch_size)
  if not has_observer:
    return _Steps(all_steps, None, trained_on, num_examples)
  num_steps = tf.constant(0, tf.int64)
  for _ in iter(all_steps):
    num_steps += 1
  num_observed = (num_examples + batch_size - 1) // batch_size
  first = tf.maximum(num_steps - num_observed, 0)
  return _Steps(
    all_steps.take(first), all_steps.skip(first), trained_on, num_examples
  )


def _num_new_rows(batch):
  if not _has_feature(batch, REPEATED):
    return num_rows(batch)
  x, _ = split_batch(batch)
  return tf.reduce_sum(tf.cast(tf.logical_not(x[REPEATED]), tf.int64))


def _is_new(*row):
  # tf.data hands over a pair as two arguments.
  x, _ = split_batch(row[0] if len(row) == 1 else row)
  return tf.logical_not(x[REPEATED])


@tf.autograph.experimental.do_not_convert
def _has_feature(batch, name):
  x, _ = split_batch(batch)
  return isinstance(x, dict) and name in x
