"""A client's Fisher diagonal, estimated from squared gradients.

Dhawan et al. (2024), FedFish, algorithm 2, with theta_i the weights after local
training and g_b the gradient of the mean loss of batch b:

  F_i[j] = sum over batches b of g_b[j]^2

at theta_i in a further pass, or taken along during the last local epoch. The
text of section 3 has the mean in place of the sum. Both are of the empirical
Fisher, towards the labels that the data have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_fedfish.errors import require
from tff_fedfish.rounds.gradients import batch_gradients

Structure = Any

REDUCTIONS = ('sum', 'mean')
NORMALIZATIONS = ('none', 'tensor_mean')

Select = Callable[[Structure], Structure]


@tf.autograph.experimental.do_not_convert
def _all_of(tensors):
  return tensors


class FisherSums(NamedTuple):
  """Sums over batches from which a Fisher diagonal is made."""

  squared_gradients: Structure
  """Float32 tensors shaped like the trainable weights."""
  num_terms: tf.Tensor
  """Int64, what a mean divides them by: the number of batches."""


@tf.autograph.experimental.do_not_convert
def zero_sums(trainable: Structure) -> FisherSums:
  """Returns the sums over no batches."""
  return FisherSums(
    tf.nest.map_structure(lambda w: tf.zeros(w.shape, tf.float32), trainable),
    tf.constant(0, tf.int64),
  )


@tf.autograph.experimental.do_not_convert
def add_batch(sums: FisherSums, gradients: Structure) -> FisherSums:
  """Returns the sums with the squares of one batch's gradient.

  Args:
    sums: Sums so far.
    gradients: Dense tensors shaped like the trainable weights, of any float
      dtype; squared in float32.
  """

  def add(total, gradient):
    return total + tf.square(tf.cast(gradient, tf.float32))

  return FisherSums(
    tf.nest.map_structure(add, sums.squared_gradients, gradients),
    sums.num_terms + 1,
  )


def estimate_fisher_sums(
  estimator: str,
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
  *,
  select: Select = _all_of,
  micro_batch_size: int | None = None,
) -> FisherSums:
  """Sums squared gradients at fixed weights, while a `tf.function` is traced.

  Args:
    estimator: 'extra_pass' or 'example_sq'; 'last_epoch' comes along with
      training and has no pass of its own.
    model: See `local_training`.
    trainable: The client's weights after local training.
    non_trainable: Weights held fixed.
    dataset: The client's batches.
    select: Returns those of the trainable tensors whose gradients are squared.
    micro_batch_size: Of 'extra_pass': rows of a batch that pass through the
      model at a time; the square is still that of the whole batch's gradient.
      None: all. 'example_sq' takes one row at a time.

  Raises:
    ValueError: If the estimator is none of these.
  """
  weights = trainable, non_trainable
  if estimator == 'extra_pass':
    return empirical_fisher_sums(
      model,
      *weights,
      dataset,
      select=select,
      micro_batch_size=micro_batch_size,
    )
  if estimator == 'example_sq':
    rows = dataset.unbatch().batch(1)
    return empirical_fisher_sums(model, *weights, rows, select=select)
  raise ValueError(f'`estimator` {estimator!r} has no pass after training.')


def empirical_fisher_sums(
  model: Any,
  trainable: Structure,
  non_trainable: Structure,
  dataset: tf.data.Dataset,
  *,
  select: Select = _all_of,
  micro_batch_size: int | None = None,
) -> FisherSums:
  """Sums squared batch gradients at fixed weights (algorithm 2, extra pass).

  The gradient is that of the data loss only, without dropout and augmentation.

  Squaring batch means underestimates the per-example diagonal by about the
  batch size, so clients are comparable only at equal batch sizes. The arguments
  are those of `estimate_fisher_sums`.
  """
  sums = zero_sums(select(trainable))
  for batch in iter(dataset):
    # The weights are fixed, so nothing else would keep batches from running,
    # and taking memory, side by side.
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    found = batch_gradients(
      model,
      trainable,
      non_trainable,
      batch,
      training=False,
      micro_batch_size=micro_batch_size,
    )
    sums = add_batch(sums, select(found.data))
  return sums


@tf.autograph.experimental.do_not_convert
def second_moment_sums(optimizer_state: Structure) -> FisherSums:
  """Returns Adam's second moment with its bias corrected, as sums of one term.

  v / (1 - beta_2^t) after t steps: a mean of the squared gradients of local
  training, later ones weighing more; after a single step exactly g^2.

  Args:
    optimizer_state: The state of an Adam or AdamW of TFF whose moments started
      from zero; without a step the result is 0.

  Raises:
    ValueError: If it is the state of another optimizer.
  """
  if not isinstance(optimizer_state, Mapping) or not (
    {'preconditioner', 'beta_2', 'step'} <= optimizer_state.keys()
  ):
    raise ValueError(
      "`fisher_estimator` 'second_moment' requires a client optimizer with a "
      "second moment, such as 'adamw', but this one has none. Choose another "
      'estimator or optimizer.'
    )
  beta_2, step = (
    tf.cast(optimizer_state[name], tf.float32) for name in ('beta_2', 'step')
  )
  correction = 1.0 - tf.pow(beta_2, step)
  return FisherSums(
    tf.nest.map_structure(
      lambda v: tf.math.divide_no_nan(tf.cast(v, tf.float32), correction),
      optimizer_state['preconditioner'],
    ),
    tf.constant(1, tf.int64),
  )


@tf.autograph.experimental.do_not_convert
def fisher_diagonal_from_sums(
  sums: FisherSums,
  reduction: str,
  normalization: str = 'none',
  power: float = 1.0,
  *,
  is_stacked: Sequence[bool] | None = None,
) -> Structure:
  """Returns the Fisher diagonal of one client, or a power of it.

  Args:
    sums: Sums over the client's batches.
    reduction: 'sum' as printed in algorithm 2, under which a client's
      influence grows with its number of batches; 'mean' over the batches as in
      the text of section 3.
    normalization: 'none' as in the paper. Squared gradients of the loss vanish
      where a client fits its data, so that it hardly counts beside one that
      does not; with 'tensor_mean' every tensor of a layer is divided by its
      mean, and all clients have the same mass in it (for their weights w_i),
      spread over the entries by what their data determine. Then the reduction
      does not matter.
    power: p in (0, 1], to which the diagonal is raised before it is normalized;
      1 in the paper. The smaller p, the more alike clients count.
    is_stacked: Whether a tensor holds all layers, along its first axis, of each
      in order; every layer then has its own mean. None: no tensor does.

  Returns:
    Float32 tensors >= 0 shaped like the weights, unit (nats / weight)^2p, with
    'tensor_mean' none; 0 for a client without batches.

  Raises:
    ValueError: If `reduction` or `normalization` is neither.
  """
  for name, value, choices in (
    ('fisher_reduction', reduction, REDUCTIONS),
    ('fisher_normalization', normalization, NORMALIZATIONS),
  ):
    require(value in choices, name, ' or '.join(map(repr, choices)), value)
  diagonal = sums.squared_gradients
  if reduction == 'mean':
    num_terms = tf.cast(sums.num_terms, tf.float32)
    diagonal = tf.nest.map_structure(
      lambda s: tf.math.divide_no_nan(s, num_terms), diagonal
    )
  if power != 1.0:
    # The root is exact to the last bit.
    raised = tf.sqrt if power == 0.5 else lambda f: tf.pow(f, power)
    diagonal = tf.nest.map_structure(raised, diagonal)
  if normalization == 'tensor_mean':
    tensors = tf.nest.flatten(diagonal)
    flags = is_stacked or [False] * len(tensors)
    diagonal = tf.nest.pack_sequence_as(
      diagonal,
      [_over_mean(t, flag) for t, flag in zip(tensors, flags, strict=True)],
    )
  return diagonal


def _over_mean(tensor, is_stacked):
  axes = list(range(1, tensor.shape.rank)) if is_stacked else None
  mean = tf.reduce_mean(tensor, axes, keepdims=is_stacked)
  return tf.math.divide_no_nan(tensor, mean)
