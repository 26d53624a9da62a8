"""The batches of a client's local steps, in plain TensorFlow."""

from typing import NamedTuple

import tensorflow as tf

from tff_fedfish.rounds.gradients import has_feature, num_rows, split_batch

REPEATED = 'is_repeated'
"""Key of `x`, where that is a mapping: bool [batch], marks the rows that
came before in the same dataset. They are trained on, but not counted."""


class DrawnSteps(NamedTuple):
  """A dataset that holds the batches of all steps, in place of one pass."""

  num_examples: tf.Tensor
  """Int64 scalar, the rows that they were drawn from."""
  num_unobserved: tf.Tensor
  """Int64 scalar, the first steps, which no observer sees."""


class LocalSteps(NamedTuple):
  """The batches of all local steps."""

  unobserved: tf.data.Dataset | None
  """Batches of the first steps; None: there are none."""
  observed: tf.data.Dataset | None
  """Batches of the last steps; None without an observer."""
  trained_on: tf.data.Dataset
  """The rows of all of them, each once."""
  num_examples: tf.Tensor | None
  """Their number; None: it is that of one pass."""


def plan(
  dataset: tf.data.Dataset,
  num_local_epochs: int | tf.Tensor,
  num_local_steps: int | None,
  drawn: DrawnSteps | None,
  *,
  has_observer: bool,
) -> LocalSteps:
  """Returns the batches of all steps; the arguments are those of `train`."""
  if drawn is not None:
    steps = _split(dataset, drawn.num_unobserved, has_observer)
    return LocalSteps(*steps, dataset, drawn.num_examples)
  if num_local_steps is None and not has_feature(
    dataset.element_spec, REPEATED
  ):
    steps = _whole_passes(dataset, num_local_epochs, has_observer)
    return LocalSteps(*steps, dataset, None)
  return _limited(dataset, num_local_epochs, num_local_steps, has_observer)


@tf.autograph.experimental.do_not_convert
def _whole_passes(dataset, num_local_epochs, has_observer):
  if not has_observer:
    return dataset.repeat(num_local_epochs), None
  unobserved = None
  if num_local_epochs > 1:
    unobserved = dataset.repeat(num_local_epochs - 1)
  return unobserved, dataset


@tf.autograph.experimental.do_not_convert
def _split(all_steps, num_unobserved, has_observer):
  if not has_observer:
    return all_steps, None
  return all_steps.take(num_unobserved), all_steps.skip(num_unobserved)


def _limited(dataset, num_local_epochs, num_local_steps, has_observer):
  all_steps, one_pass = dataset.repeat(num_local_epochs), dataset
  if num_local_steps is not None:
    all_steps = all_steps.take(num_local_steps)
    one_pass = one_pass.take(num_local_steps)
  num_examples, num_batches = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
  batch_size = tf.constant(1, tf.int64)
  for batch in iter(one_pass):
    num_examples += _num_new_rows(batch)
    num_batches += 1
    batch_size = tf.maximum(batch_size, num_rows(batch))
  trained_on = one_pass
  if has_feature(dataset.element_spec, REPEATED):
    trained_on = one_pass.unbatch().filter(_is_new).batch(batch_size)
  num_steps = num_batches * num_local_epochs
  if num_local_steps is not None:
    num_steps = tf.minimum(num_steps, num_local_steps)
  num_observed = (num_examples + batch_size - 1) // batch_size
  num_unobserved = tf.maximum(num_steps - num_observed, 0)
  return LocalSteps(
    *_split(all_steps, num_unobserved, has_observer), trained_on, num_examples
  )


def _num_new_rows(batch):
  if not has_feature(batch, REPEATED):
    return num_rows(batch)
  x, _ = split_batch(batch)
  return tf.reduce_sum(tf.cast(tf.logical_not(x[REPEATED]), tf.int64))


def _is_new(*row):
  # tf.data hands over a pair as two arguments.
  x, _ = split_batch(row[0] if len(row) == 1 else row)
  return tf.logical_not(x[REPEATED])
