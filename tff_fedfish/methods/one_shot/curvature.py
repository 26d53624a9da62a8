"""Summaries of a client's data that one-shot methods upload.

Jhunjhunwala et al. (2024), FedFisher. The Fisher of a classifier of images is
that of the model's own distribution, at fixed weights, not in training:

  F = 1/n sum over rows x of
      E_{y ~ p(y | x)} (d log p(y | x) / dw) (d log p(y | x) / dw)^T

The expectation over the classes is exact, which takes a backward pass per
class. `diagonal` has the diagonal of F. `kfac` has Kronecker factors of it
(Martens and Grosse, 2015; of convolutions Grosse and Martens, 2016). A layer
maps inputs to preactivations z = V^T [a; 1] at every position of an image; V is
its kernel in the layout [in, out], with the bias as its last row.

  letter  what
  a       inputs of the layer, 1 appended if it has a bias
  g       gradients of log p(y | x) with respect to z, times sqrt(p(y | x))
  A       mean over rows of the sum over positions of a a^T
  G       mean over rows of the sum over y and mean over positions of g g^T

The layer's Fisher is A (x) G, which multiplies V to A V G; it is exact with one
row and one position. A norm's Fisher is its diagonal, in the shape of V.

A `model` is a `ModelSpec`, or has those of its attributes that are used. A
summary has the tensors that `uploads.py` lists by name, means over the rows of
the dataset, 0 without rows. Of one batch all activations are in memory at once.
All summaries are made while a `tf.function` is traced.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from models.image_model_config import ImageModelConfig
from models.layers import Layer, weight_names, with_matrix
from models.taps import by_position, inputs_by_position, tapped_logits
from tff_fedfish.methods.one_shot.uploads import (
  UploadKind,
  kfac_shapes,
  summary_shapes,
)
from tff_fedfish.rounds.fold import fold
from tff_fedfish.rounds.gradients import batch_gradients, num_rows, split_batch

Weights = tuple[tf.Tensor, ...]
Summary = dict[str, tf.Tensor]


def kfac(model: Any, weights: Weights, dataset: tf.data.Dataset) -> Summary:
  """Returns A and G of each layer."""
  return _mean('kfac', _factors, model, weights, dataset)


def diagonal(model: Any, weights: Weights, dataset: tf.data.Dataset) -> Summary:
  """Returns the diagonal of F, in the order of the weights.

  Of a language model it is that of the empirical Fisher: the mean over rows of
  the squared gradient of the log probability of a row's targets.
  """
  terms = _squares_of_batch
  if not isinstance(model.shape, ImageModelConfig):
    terms, dataset = _squares_of_row, dataset.unbatch().batch(1)
  return _mean('diagonal', terms, model, weights, dataset)


def gram(model: Any, weights: Weights, dataset: tf.data.Dataset) -> Summary:
  """Returns the mean of x x^T, x the inputs of each dense layer."""
  return _mean('gram', _grams, model, weights, dataset)


def class_counts(
  model: Any, weights: Weights, dataset: tf.data.Dataset
) -> Summary:
  """Returns the rows of every class."""
  num_classes = model.shape.num_classes

  def add(counts, batch):
    _, labels = split_batch(batch)
    return counts + tf.math.bincount(
      labels, minlength=num_classes, maxlength=num_classes, dtype=tf.int64
    )

  counts = fold(dataset, tf.zeros([num_classes], tf.int64), add)
  return {'class_counts': counts}


def layer_product(
  layer: Layer, summaries: Mapping[str, tf.Tensor], matrix: tf.Tensor
) -> tf.Tensor:
  """Returns sum_i F_i v over clients, of one layer.

  `summaries` has at least the layer's tensors of `kfac`, [clients, ...]. v, and
  what is returned, is shaped as `matrix_of`, of the float type to compute in.
  """
  factors = [
    tf.cast(summaries[name], matrix.dtype) for name in kfac_shapes([layer])
  ]
  if layer.kind == 'scale':
    return tf.reduce_sum(factors[0], axis=0) * matrix
  a, g = factors
  return tf.reduce_sum(tf.matmul(tf.matmul(a, matrix), g), axis=0)


def _mean(kind, terms, model, weights, dataset):
  """Returns the mean over rows; `terms` are the sums over those of a batch."""
  shapes = summary_shapes(model.shape, UploadKind(kind))
  zeros = {name: tf.zeros(sizes) for name, sizes in shapes.items()}

  @tf.autograph.experimental.do_not_convert
  def add(state, batch):
    sums, count = state
    sums = tf.nest.map_structure(tf.add, sums, terms(model, weights, batch))
    return sums, count + num_rows(batch)

  sums, count = fold(dataset, (zeros, tf.constant(0, tf.int64)), add)
  count = tf.cast(count, tf.float32)
  return tf.nest.map_structure(lambda s: tf.math.divide_no_nan(s, count), sums)


def _factors(model, weights, batch):
  """Returns the K-FAC sums of one batch."""
  found = {}
  for layer, a, gradients in _taps(model, weights, batch):
    if layer.kind == 'scale':
      found[f'diagonal/{layer.name}'] = _squares(layer, a, gradients)
      continue
    flat = _flat(_with_one(layer, a))
    found[f'inputs/{layer.name}'] = tf.matmul(flat, flat, transpose_a=True)
    found[f'gradients/{layer.name}'] = tf.add_n(list(map(_outer, gradients)))
  return found


def _outer(g):
  """Returns g g^T, the sum over rows of the mean over positions."""
  share = tf.constant(1 / g.shape[1])
  flat = _flat(g * tf.sqrt(share))
  return tf.matmul(flat, flat, transpose_a=True)


def _squares_of_batch(model, weights, batch):
  """Returns the sums of F's diagonal of one batch, in the model's order."""
  names = weight_names(model.layers)
  found = dict(zip(names, weights, strict=True))
  for layer, a, gradients in _taps(model, weights, batch):
    found = with_matrix(layer, found, _squares(layer, a, gradients))
  return {f'diagonal/{i}': found[name] for i, name in enumerate(names)}


def _squares(layer, a, gradients):
  """Returns the sums over rows of the squared gradients of V."""

  def of_label(g):
    # A row's gradient is the sum over its positions, and is squared afterwards.
    if layer.kind == 'scale':
      of_scale = tf.reduce_sum(a * g, axis=1)
      squares = tf.square(tf.stack([of_scale, tf.reduce_sum(g, axis=1)]))
      return tf.reduce_sum(squares, axis=1)
    inputs = _with_one(layer, a)
    if inputs.shape[1] == 1:
      # (a g)^2 = a^2 g^2.
      squares = tf.square(_flat(inputs)), tf.square(_flat(g))
      return tf.matmul(*squares, transpose_a=True)
    # The gradients of all rows are in memory at once.
    of_rows = tf.matmul(inputs, g, transpose_a=True)
    return tf.reduce_sum(tf.square(of_rows), axis=0)

  return tf.add_n(list(map(of_label, gradients)))


def _squares_of_row(model, weights, row):
  """Returns the squares of the gradient of a row's log probability."""
  mean = batch_gradients(
    model.functional_model, weights, (), row, training=False
  ).data
  _, num_targets = split_batch(row)
  squares = {}
  for i, g in enumerate(mean):
    g = tf.cast(num_targets[0], g.dtype) * g
    squares[f'diagonal/{i}'] = tf.square(tf.cast(g, tf.float32))
  return squares


def _grams(model, weights, batch):
  _, inputs, _ = tapped_logits(model, weights, split_batch(batch)[0])
  grams = {}
  for layer in model.layers:
    if layer.kind == 'matrix':
      rows = tf.cast(inputs[layer.name], tf.float32)
      grams[f'gram/{layer.name}'] = tf.matmul(rows, rows, transpose_a=True)
  return grams


def _taps(model, weights, batch):
  """Yields each layer, its a by position, and its g by position per label.

  The model runs forwards once, and backwards once per label.
  """
  x, _ = split_batch(batch)
  with tf.GradientTape(persistent=True) as tape:
    logits, inputs, outputs = tapped_logits(model, weights, x, tape)
  probabilities = tf.nn.softmax(logits)
  roots = tf.sqrt(probabilities)
  num_classes = logits.shape[-1]
  # d log p_y / d logits = onehot(y) - p.
  gradients = [
    tape.gradient(
      logits,
      outputs,
      output_gradients=roots[:, label, tf.newaxis]
      * (tf.one_hot(label, num_classes) - probabilities),
    )
    for label in range(num_classes)
  ]
  for layer in model.layers:
    a = inputs_by_position(layer, inputs[layer.name])
    yield layer, a, [by_position(g[layer.name]) for g in gradients]


def _with_one(layer, a):
  if layer.bias is None:
    return a
  return tf.concat([a, tf.ones_like(a[..., :1])], axis=-1)


def _flat(values):
  # [rows, positions, features] -> [rows * positions, features]
  return tf.reshape(values, [-1, values.shape[-1]])
