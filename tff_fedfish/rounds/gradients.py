"""The gradients of one batch, taken at once or in slices, in plain TensorFlow.

A `model` is anything with `predict_on_batch`, `loss` and the metrics functions
of `tff.learning.models.FunctionalModel`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedfish.rounds.fold import fold

# A nested structure of tensors, as tf.nest understands it.
Structure = Any


class BatchOutput(NamedTuple):
  """Input of a model's metrics."""

  loss: tf.Tensor
  predictions: Structure
  num_examples: tf.Tensor


# (weights, batch, output of the data loss) -> scalar that is added to the loss.
ExtraLoss = Callable[[Structure, Any, BatchOutput], tf.Tensor]


class BatchGradients(NamedTuple):
  """The gradients of one batch.

  Gradients have the structure, shapes and dtypes of the trainable weights: 0
  where a weight does not reach the loss, and sparse ones are made dense, which
  sums entries with the same index.
  """

  loss: tf.Tensor
  """Scalar, the mean data loss of the batch."""
  num_examples: tf.Tensor
  """Int64, the rows of the batch."""
  metrics: Structure
  """The model's metrics state, updated with the batch; None where none was
  given."""
  data: Structure
  """Gradients of the data loss; None where only `total` was asked for."""
  total: Structure
  """Gradients of the data loss plus the extra loss."""


def batch_gradients(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  batch: Any,
  metrics: Structure = None,
  *,
  training: bool,
  micro_batch_size: int | None = None,
  prepare: Callable[[Any], Any] | None = None,
  extra_loss: ExtraLoss | None = None,
  with_data: bool = True,
) -> BatchGradients:
  """Returns the gradients of a batch's mean loss.

  Args:
    model: See the module.
    trainable: Weights to differentiate by.
    non_trainable: Weights held fixed.
    batch: A mapping with `x` and `y`, or a pair.
    metrics: The model's metrics state, to be updated with the data loss and the
      predictions. None: there are no metrics.
    training: Whether the model behaves as in training (dropout).
    micro_batch_size: Rows per slice, >= 1. The activations of only one slice
      are alive at a time. Losses and gradients are averaged over the slices,
      weighted by their targets: the increase of the metrics state's
      `num_tokens`, or the rows if the model does not keep it. None: the batch
      is one slice.
    prepare: Called with every slice before the model is.
    extra_loss: Scalar added to the mean data loss of a slice. None: no term.
    with_data: Whether `data` is needed beside `total`. With an extra loss this
      costs a second backward pass.
  """
  has_two = with_data and extra_loss is not None

  def forward(part):
    if prepare is not None:
      part = prepare(part)
    x, y = split_batch(part)
    with tf.GradientTape(persistent=has_two) as tape:
      tape.watch(trainable)
      predictions = model.predict_on_batch(
        (trainable, non_trainable), x, training
      )
      loss = model.loss(output=predictions, label=y)
      output = BatchOutput(loss, predictions, num_rows(part))
      total = loss
      if extra_loss is not None:
        total = loss + extra_loss(trainable, part, output)
    gradients = (dense_gradients(tape, total, trainable),)
    if has_two:
      gradients += (dense_gradients(tape, loss, trainable),)
    return output, gradients

  if micro_batch_size is None:
    output, gradients = forward(batch)
    loss = output.loss
    metrics = _updated(model, metrics, batch, output)
  else:
    loss, gradients, metrics = _mean_over_slices(
      model, forward, trainable, batch, metrics, micro_batch_size, 1 + has_two
    )
  data = gradients[-1] if with_data else None
  return BatchGradients(loss, num_rows(batch), metrics, data, gradients[0])


@tf.autograph.experimental.do_not_convert
def dense_gradients(
  tape: tf.GradientTape, loss: tf.Tensor, trainable: Structure
) -> Structure:
  """Returns d loss / d trainable, each a tensor of its weight's shape.

  The tape has watched the weights, and seen the scalar loss made.
  """
  gradients = tape.gradient(
    loss, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return tf.nest.map_structure(tf.convert_to_tensor, gradients)


@tf.autograph.experimental.do_not_convert
def plus_mean_gradient(
  variate: Structure,
  start: Structure,
  end: Structure,
  *,
  num_steps: int | tf.Tensor,
  rate: tf.Tensor,
) -> Structure:
  """Returns h + (x - y) / (M eta): h plus the mean of M plain SGD steps.

  Args:
    variate: h.
    start: x, the weights before the steps.
    end: y, those after them.
    num_steps: M; with 0 the mean is 0.
    rate: eta.
  """

  def plus(h, x, y):
    distance = tf.cast(num_steps, h.dtype) * tf.cast(rate, h.dtype)
    return h + tf.math.divide_no_nan(x - y, distance)

  return tf.nest.map_structure(plus, variate, start, end)


@tf.autograph.experimental.do_not_convert
def split_batch(batch: Any) -> tuple[Structure, Structure]:
  """Returns the x and y of a mapping or a pair."""
  if isinstance(batch, dict):
    return batch['x'], batch['y']
  return batch


@tf.autograph.experimental.do_not_convert
def has_feature(batch: Any, name: str) -> bool:
  """Returns whether the x of a batch, or of its spec, has a key."""
  x, _ = split_batch(batch)
  return isinstance(x, dict) and name in x


@tf.autograph.experimental.do_not_convert
def num_rows(batch: Any) -> tf.Tensor:
  """Returns the number of rows of a batch, int64."""
  x, _ = split_batch(batch)
  return tf.shape(tf.nest.flatten(x)[0], tf.int64)[0]


def _mean_over_slices(
  model, forward, trainable, batch, metrics, micro_batch_size, num_gradients
):
  """Returns (loss, gradients, metrics) of a batch that is taken in slices."""
  is_tracked = metrics is not None
  if not is_tracked:
    metrics = model.initialize_metrics_state()

  def add(carried, start):
    sums, loss_sum, weight_sum, before = carried
    part = _rows(batch, start, start + micro_batch_size)
    output, gradients = forward(part)
    metrics = _updated(model, before, part, output)
    weight = _num_targets(before, metrics, part)
    return (
      _add_weighted(sums, gradients, weight),
      loss_sum + weight * tf.cast(output.loss, tf.float32),
      weight_sum + weight,
      metrics,
    )

  zeros = (tf.nest.map_structure(tf.zeros_like, trainable),) * num_gradients
  sums, loss_sum, weight_sum, metrics = fold(
    tf.range(0, num_rows(batch), micro_batch_size),
    (zeros, tf.constant(0.0), tf.constant(0.0), metrics),
    add,
  )
  gradients = tf.nest.map_structure(
    lambda s: tf.math.divide_no_nan(s, tf.cast(weight_sum, s.dtype)), sums
  )
  loss = tf.math.divide_no_nan(loss_sum, weight_sum)
  return loss, gradients, metrics if is_tracked else None


def _rows(batch, start, stop):
  return tf.nest.map_structure(lambda tensor: tensor[start:stop], batch)


def _add_weighted(sums, gradients, weight):
  return tf.nest.map_structure(
    lambda s, g: s + tf.cast(weight, g.dtype) * g, sums, gradients
  )


def _updated(model, metrics, batch, output):
  if metrics is None:
    return None
  return model.update_metrics_state(
    metrics, labels=split_batch(batch)[1], batch_output=output
  )


def _num_targets(before, after, part):
  """Returns how many targets a slice's mean loss is of, float32."""
  if isinstance(after, Mapping) and 'num_tokens' in after:
    (old, *_), (new, *_) = (
      tf.nest.flatten(state['num_tokens']) for state in (before, after)
    )
    return tf.cast(new - old, tf.float32)
  return tf.cast(num_rows(part), tf.float32)
