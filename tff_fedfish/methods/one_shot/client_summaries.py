"""Summaries of a client's data at its trained weights, and their compression.

A one-shot method's client uploads its weights with a summary: rows per class,
the Fisher diagonal, Gram matrices of the inputs of dense layers, or the K-FAC
factors of the Fisher. `upload_sizes.py` names their tensors. The functions are
to be called while a `tf.function` is traced.
"""

import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from models.functional_model import ModelSpec
from models.image_model_config import ImageModelConfig
from models.model_shapes import ModelShape, are_stacked
from tff_fedfish.errors import require_one_of
from tff_fedfish.methods.one_shot import curvature, upload_sizes
from tff_fedfish.methods.one_shot.low_rank import compress_psd
from tff_fedfish.methods.one_shot.quantization import MODEL_BITS, quantize
from tff_fedfish.methods.one_shot.upload_sizes import Upload
from tff_fedfish.rounds.gradients import batch_gradients, num_rows, split_batch

Weights = Sequence[tf.Tensor]


def require_known(upload: Upload) -> None:
  """Raises ValueError unless there is such an upload."""
  for name, choices in typing.get_type_hints(Upload).items():
    require_one_of(name, getattr(upload, name), typing.get_args(choices))


def summarize(
  model: ModelSpec,
  shape: ModelShape,
  upload: Upload,
  weights: Weights,
  dataset: tf.data.Dataset,
) -> dict[str, tf.Tensor]:
  """Returns a summary of the client's rows by name; 0 without rows.

  A Fisher is per row. That of images is the model's own, exact: the expectation
  over all classes. The diagonal of text is the empirical one: the mean over the
  client's rows of the squared gradient of the log probability of a row's
  targets.
  """
  if upload.summary == 'none':
    return {}
  if upload.summary == 'class_counts':
    return {'class_counts': _class_counts(shape.num_classes, dataset)}
  if upload.summary == 'gram':
    return _gram_matrices(model, weights, dataset)
  if upload.summary == 'kfac':
    return curvature.kfac_summary(model, (tuple(weights), ()), dataset)
  if isinstance(shape, ImageModelConfig):
    sums, count = curvature.diagonal_sums(model, (tuple(weights), ()), dataset)
  else:
    sums, count = _empirical_sums(
      model.functional_model, tuple(weights), dataset
    )
  count = tf.cast(count, tf.float32)
  return {
    f'diagonal/{i}': tf.math.divide_no_nan(total, count)
    for i, total in enumerate(sums)
  }


@tf.autograph.experimental.do_not_convert
def compressed(
  shape: ModelShape, upload: Upload, summary: Mapping[str, tf.Tensor]
) -> tuple[tf.Tensor, ...]:
  """Returns the tensors of a summary as the server gets them, in order.

  With compression 'paper' factors are of low rank and quantized, diagonals are
  quantized; counts are sent as they are.
  """
  shapes = upload_sizes.summary_shapes(shape, upload)
  if upload.compression == 'none' or upload.summary == 'class_counts':
    return tuple(summary[name] for name in shapes)
  rank = upload_sizes.factor_rank(shape, upload)
  stacked = set()
  if upload.summary == 'diagonal':
    stacked = {
      name for name, s in zip(shapes, are_stacked(shape), strict=True) if s
    }
  return tuple(
    compress_psd(summary[name], rank)
    if upload_sizes.is_factor(name)
    else quantize(summary[name], MODEL_BITS, is_stacked=name in stacked)
    for name, sizes in shapes.items()
  )


@tf.autograph.experimental.do_not_convert
def compressed_weights(
  shape: ModelShape, upload: Upload, weights: Weights
) -> Weights:
  """Returns the weights as the server gets them: 'paper' quantizes by layer."""
  if upload.compression == 'none':
    return weights
  return tuple(
    quantize(weight, MODEL_BITS, is_stacked=is_stacked)
    for weight, is_stacked in zip(weights, are_stacked(shape), strict=True)
  )


def _class_counts(num_classes, dataset):
  """Returns the rows of every class, int64 [num_classes]."""
  counts = tf.zeros([num_classes], tf.int64)
  for batch in iter(dataset):
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    _, labels = split_batch(batch)
    counts += tf.math.bincount(
      labels, minlength=num_classes, maxlength=num_classes, dtype=tf.int64
    )
  return counts


def _empirical_sums(model, weights, dataset):
  """Returns the squares of the rows' summed gradients, summed; and the rows."""
  sums = tuple(tf.zeros(w.shape) for w in weights)
  count = tf.constant(0, tf.int64)
  for row in iter(dataset.unbatch().batch(1)):
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    mean = batch_gradients(model, weights, (), row, training=False).data
    _, num_targets = split_batch(row)
    sums = _add_squares(sums, _times(num_targets[0], mean))
    count += 1
  return sums, count


@tf.autograph.experimental.do_not_convert
def _add_squares(sums, gradients):
  return tuple(
    s + tf.square(tf.cast(g, tf.float32))
    for s, g in zip(sums, gradients, strict=True)
  )


@tf.autograph.experimental.do_not_convert
def _times(count, gradients):
  return tuple(tf.cast(count, g.dtype) * g for g in gradients)


def _gram_matrices(model, weights, dataset):
  """Returns the mean of x x^T over all rows, x the inputs of each layer."""
  sizes = {x.name: x.fan_in for x in model.layers if x.kind == 'matrix'}
  sums = {name: tf.zeros([size, size]) for name, size in sorted(sizes.items())}
  count = tf.constant(0.0)
  for batch in iter(dataset):
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    grams = _batch_grams(model, weights, batch, sorted(sizes))
    sums = {name: sums[name] + grams[name] for name in sums}
    count += tf.cast(num_rows(batch), tf.float32)
  return {
    f'gram/{name}': tf.math.divide_no_nan(total, count)
    for name, total in sums.items()
  }


@tf.autograph.experimental.do_not_convert
def _batch_grams(model, weights, batch, names):
  inputs = {}

  def tap(name, layer_inputs, preactivations):
    inputs[name] = layer_inputs
    return preactivations

  x, _ = split_batch(batch)
  model.tapped_logits((tuple(weights), ()), x, tap)
  rows = {name: tf.cast(inputs[name], tf.float32) for name in names}
  return {
    name: tf.matmul(of_layer, of_layer, transpose_a=True)
    for name, of_layer in rows.items()
  }
