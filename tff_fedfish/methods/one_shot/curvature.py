"""A client's Fisher by layers: K-FAC summary, exact diagonal, product.

Jhunjhunwala et al. (2024), FedFisher, with the Fisher of the model's own
distribution at fixed weights, the model not in training,

  F = 1/n sum over rows x of
      E_{y ~ p(y | x)} (d log p(y | x) / dw) (d log p(y | x) / dw)^T

The expectation over the classes is exact, which takes a backward pass per
class. `mathematics/kfac.py` has the formulas, `curvature_shapes.py` the names
of the summary's tensors.

A `model` is a classifier of images: anything with `layers` and `tapped_logits`
of `models.functional_model.ModelSpec`.
"""

import collections
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from models.layers import Layer, weight_names, with_matrix
from tff_fedfish.methods.one_shot import kfac
from tff_fedfish.methods.one_shot.curvature_shapes import (
  diagonal_name,
  gradients_name,
  has_factors,
  inputs_name,
  summary_specs,
)
from tff_fedfish.rounds.gradients import num_rows, split_batch


def kfac_summary(
  model: Any, weights: Any, dataset: tf.data.Dataset
) -> collections.OrderedDict[str, tf.Tensor]:
  """Returns a client's K-FAC summary, while a `tf.function` is traced.

  The activations of a whole batch are in memory at once.

  Args:
    model: See the module.
    weights: (trainable, non_trainable).
    dataset: The client's batches.

  Returns:
    Name -> float32, see `curvature_shapes.summary_specs`: means over the rows
    of the dataset, 0 if there are none.
  """
  zeros = collections.OrderedDict(
    (name, tf.zeros(shape))
    for name, shape in summary_specs(model.layers).items()
  )
  terms = functools.partial(_factors, model, weights)
  sums, num_examples = _sum_over(dataset, zeros, terms)
  count = tf.cast(num_examples, tf.float32)
  return tf.nest.map_structure(lambda s: tf.math.divide_no_nan(s, count), sums)


def diagonal_sums(
  model: Any, weights: Any, dataset: tf.data.Dataset
) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
  """Sums the exact diagonal of the Fisher, while a `tf.function` is traced.

  `weights` are (trainable, non_trainable).

  Returns:
    The sums over rows, in the model's order, and the number of rows.
  """
  zeros = tuple(tf.zeros(w.shape, tf.float32) for w in weights[0])
  terms = functools.partial(_diagonal, model, weights)
  return _sum_over(dataset, zeros, terms)


def layer_product(
  layer: Layer, summaries: Mapping[str, tf.Tensor], matrix: tf.Tensor
) -> tf.Tensor:
  """Returns sum_i F_i v over clients, of one layer.

  Args:
    layer: The layer.
    summaries: Of `kfac_summary`, at least the tensors that `summary_specs`
      names for the layer, stacked: [clients, ...].
    matrix: v as `models.layers.matrix_of`, of the float type to compute in.

  Returns:
    Shaped like v.
  """
  named = {
    name: tf.cast(summaries[name], matrix.dtype)
    for name in summary_specs([layer])
  }
  if not has_factors(layer):
    return tf.reduce_sum(named[diagonal_name(layer)], axis=0) * matrix
  return kfac.sum_of_products(
    named[inputs_name(layer)], matrix, named[gradients_name(layer)]
  )


def inputs_by_position(layer: Layer, inputs: tf.Tensor) -> tf.Tensor:
  """Returns a, the inputs that V of a layer multiplies at every position.

  Args:
    layer: The layer.
    inputs: See `models.layers.Tap`.

  Returns:
    Float32 [rows, positions, fan_in].
  """
  if layer.window is not None:
    inputs = kfac.patches(inputs, **layer.window._asdict())
  return by_position(inputs)


def by_position(values: tf.Tensor) -> tf.Tensor:
  """Returns [rows, ..., features] as float32 [rows, positions, features]."""
  *sizes, width = values.shape[1:]
  values = tf.reshape(values, [-1, math.prod(sizes), width])
  return tf.cast(values, tf.float32)


class _Taps(NamedTuple):
  """Inputs and gradients of all layers for one batch."""

  inputs: dict[str, tf.Tensor]
  """Name of a layer -> inputs."""
  gradients: list[dict[str, tf.Tensor]]
  """Per label, name of a layer -> gradients of log p of the label, times
  sqrt(p)."""


def _sum_over(dataset, zeros, terms):
  """Returns the sums of `terms(batch)`, and the number of rows."""
  sums, num_examples = zeros, tf.constant(0, tf.int64)
  for batch in iter(dataset):
    # The weights are fixed, so nothing else would keep batches from running,
    # and taking memory, side by side.
    tf.autograph.experimental.set_loop_options(parallel_iterations=1)
    sums = _add(sums, terms(batch))
    num_examples += num_rows(batch)
  return sums, num_examples


@tf.autograph.experimental.do_not_convert
def _add(sums, terms):
  return tf.nest.map_structure(tf.add, sums, terms)


@tf.autograph.experimental.do_not_convert
def _factors(model, weights, batch):
  """Returns the K-FAC sums of one batch."""
  taps = _tap(model, weights, batch)
  found = collections.OrderedDict()
  for layer in model.layers:
    inputs, gradients = _of_layer(layer, taps)
    if not has_factors(layer):
      found[diagonal_name(layer)] = _squares(layer, inputs, gradients)
      continue
    found[inputs_name(layer)] = kfac.input_factor(
      inputs, has_bias=layer.bias is not None
    )
    found[gradients_name(layer)] = tf.add_n(
      [kfac.gradient_factor(g) for g in gradients]
    )
  return found


@tf.autograph.experimental.do_not_convert
def _diagonal(model, weights, batch):
  """Returns the exact diagonal's sums of one batch, in the model's order."""
  taps = _tap(model, weights, batch)
  names = weight_names(model.layers)
  found = dict(zip(names, weights[0], strict=True))
  for layer in model.layers:
    squares = _squares(layer, *_of_layer(layer, taps))
    found = with_matrix(layer, found, squares)
  return tuple(found[name] for name in names)


def _squares(layer, inputs, gradients):
  """Returns the sums of the squared gradients of V over the rows."""
  if layer.kind == 'scale':
    square = kfac.squared_scale_gradients
  else:
    square = functools.partial(
      kfac.squared_gradients, has_bias=layer.bias is not None
    )
  return tf.add_n([square(inputs, g) for g in gradients])


def _tap(model, weights, batch):
  """Runs the model forwards once, and backwards once per label."""
  x, _ = split_batch(batch)
  inputs, outputs = {}, {}
  with tf.GradientTape(persistent=True) as tape:

    def tap(name, of_layer, preactivations):
      tape.watch(preactivations)
      inputs[name], outputs[name] = of_layer, preactivations
      return preactivations

    logits = model.tapped_logits(weights, x, tap)
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
  return _Taps(inputs, gradients)


def _of_layer(layer, taps):
  """Returns a layer's inputs and, per label, gradients by position."""
  inputs = inputs_by_position(layer, taps.inputs[layer.name])
  return inputs, [by_position(g[layer.name]) for g in taps.gradients]
