"""Local training and local evaluation of one client, in plain TensorFlow.

Every method trains with the one loop here and differs by hooks. A `model` is
anything with `predict_on_batch`, `loss` and the metrics functions of
`tff.learning.models.FunctionalModel`; an `optimizer` anything with
`initialize`, `set_hparams` and `next` of `tff.learning.optimizers.Optimizer`.

Loops iterate over the dataset (`for batch in iter(dataset)`): reducing it
instead would leave accelerators idle. The functions are to be called while a
`tf.function` is traced; AutoGraph turns the loops into graph loops. One
iteration runs at a time: TensorFlow's ten would keep the activations of as many
batches where, as in an evaluation, none waits for the one before it.
"""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# A nested structure of tensors, as tf.nest understands it.
Structure = Any

NOISE_SEED = 'noise_seed'
"""Where `x` is a mapping with this key, int32 [batch, 2], its model draws
dropout and the like from it; `train` gives every step other seeds."""


class BatchOutput(NamedTuple):
  """What a model's metrics are updated with."""

  loss: tf.Tensor
  predictions: Structure
  num_examples: tf.Tensor


class GradientObserver(NamedTuple):
  """A hook that sees the gradients of the last local epoch.

  Attributes:
    initial: The observation before the first gradient.
    observe: (observation, gradients, number of rows in the batch) ->
      observation; all are finished tensors, never IndexedSlices.
  """

  initial: Structure
  observe: Callable[[Structure, Structure, tf.Tensor], Structure]


class LocalResult(NamedTuple):
  """What local training leaves behind.

  Attributes:
    trainable: The trained weights.
    metrics: The model's metrics state over all local steps.
    num_examples: Int64, batch rows of ONE pass over the data.
    observation: The observer's last observation; None without one.
  """

  trainable: Structure
  metrics: Structure
  num_examples: tf.Tensor
  observation: Structure


def forward_and_gradients(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  batch: Any,
  *,
  training: bool,
) -> tuple[BatchOutput, Structure]:
  """Returns a batch's output and the dense gradients of its mean loss.

  Args:
    model: See the module.
    trainable: Weights to differentiate by.
    non_trainable: Weights held fixed.
    batch: A mapping with `x` and `y`, or a pair.
    training: Whether the model behaves as in training (dropout).

  Returns:
    (output, gradients). Gradients have the structure, shapes and dtypes of
    `trainable`: 0 where a weight does not reach the loss, and sparse ones are
    made dense, which sums entries with the same index.
  """
  x, y = split_batch(batch)
  with tf.GradientTape() as tape:
    tape.watch(trainable)
    predictions = model.predict_on_batch(
      (trainable, non_trainable), x, training
    )
    loss = model.loss(output=predictions, label=y)
  gradients = dense_gradients(tape, loss, trainable)
  num_examples = tf.shape(tf.nest.flatten(x)[0], tf.int64)[0]
  return BatchOutput(loss, predictions, num_examples), gradients


def dense_gradients(
  tape: tf.GradientTape, loss: tf.Tensor, trainable: Structure
) -> Structure:
  """Returns d loss / d trainable, each a tensor of its weight's shape.

  Args:
    tape: It has watched `trainable` and seen `loss` made.
    loss: Scalar.
    trainable: The weights.
  """
  gradients = tape.gradient(
    loss, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return tf.nest.map_structure(tf.convert_to_tensor, gradients)


def train(
  model: Any,
  optimizer: Any,
  hparams: Structure,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
  *,
  num_local_epochs: int | tf.Tensor,
  observer: GradientObserver | None = None,
) -> LocalResult:
  """Trains on one client's data: E passes of batch steps.

  Args:
    model: See the module.
    optimizer: The client optimizer.
    hparams: Its hyperparameters, as `optimizer.get_hparams` gives them.
    trainable: Weights at the start.
    non_trainable: Weights held fixed.
    dataset: Batches. Iterating it again yields the same batches. Noise seeds in
      them are folded with the number of the step, counted from 0 over all
      epochs: the same batch meets other noise in another epoch.
    num_local_epochs: E, >= 1; an int, or an int64 tensor where there is no
      observer.
    observer: Hook on the gradients of the last pass.

  Returns:
    The result. A dataset without batches leaves the weights as they were and
    num_examples 0.
  """
  specs = tf.nest.map_structure(
    lambda w: tf.TensorSpec(w.shape, w.dtype), trainable
  )
  state = (
    trainable,
    optimizer.set_hparams(optimizer.initialize(specs), hparams),
    model.initialize_metrics_state(),
    tf.constant(0, tf.int64),
    # Steps so far, counted where there is noise alone.
    (tf.constant(0),) if has_noise(dataset.element_spec) else (),
  )

  def step(state, batch):
    weights, optimizer_state, metrics, num_examples, num_steps = state
    if num_steps:
      batch = _at_step(batch, num_steps[0])
      num_steps = (num_steps[0] + 1,)
    output, gradients = forward_and_gradients(
      model, weights, non_trainable, batch, training=True
    )
    optimizer_state, weights = optimizer.next(
      optimizer_state, weights, gradients
    )
    metrics = model.update_metrics_state(
      metrics, labels=split_batch(batch)[1], batch_output=output
    )
    num_examples += output.num_examples
    state = (weights, optimizer_state, metrics, num_examples, num_steps)
    return state, gradients, output.num_examples

  observation = None
  if observer is None:
    for batch in iter(dataset.repeat(num_local_epochs)):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      state, _, _ = step(state, batch)
  else:
    if num_local_epochs > 1:
      for batch in iter(dataset.repeat(num_local_epochs - 1)):
        tf.autograph.experimental.set_loop_options(parallel_iterations=1)
        state, _, _ = step(state, batch)
    observation = observer.initial
    for batch in iter(dataset):
      tf.autograph.experimental.set_loop_options(parallel_iterations=1)
      state, gradients, num_rows = step(state, batch)
      observation = observer.observe(observation, gradients, num_rows)
  weights, _, metrics, num_examples, _ = state
  # Every pass has the same rows, so the division is exact.
  return LocalResult(
    weights, metrics, num_examples // num_local_epochs, observation
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
      tf.shape(tf.nest.flatten(x)[0], tf.int64)[0],
    )
    metrics = model.update_metrics_state(metrics, labels=y, batch_output=output)
  return metrics


def has_noise(batch: Any) -> bool:
  """Says whether a batch, or the type of one, holds seeds of noise."""
  x, _ = split_batch(batch)
  return isinstance(x, dict) and NOISE_SEED in x


def split_batch(batch: Any) -> tuple[Structure, Structure]:
  """Returns the x and y of a mapping or a pair."""
  if isinstance(batch, dict):
    return batch['x'], batch['y']
  return batch


def _at_step(batch, step):
  """Returns the batch with the seeds of one local step."""
  x, y = split_batch(batch)
  seeds = x[NOISE_SEED]
  seed = tf.random.experimental.stateless_fold_in(seeds[0], step)
  noise_seed = {NOISE_SEED: tf.broadcast_to(seed, tf.shape(seeds))}
  return collections.OrderedDict(x={**x, **noise_seed}, y=y)
