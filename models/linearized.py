"""Models that are linear in their trainable weights.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels". With theta a model's weights, which stay as they are,
and J its derivative there:

- a classifier of tangent features z, scores V^T (z - mean) / std + b,
- the full linearization, logits f(theta) + J delta.

Their losses are convex. Batches, loss and metrics are those of the model. It is
not in training: there is no dropout and no augmentation.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models.functional_model import ModelSpec, with_predictions
from models.layers import weight_names


def build_feature_classifier(
  model: ModelSpec,
  features: Callable[[Sequence[tf.Tensor], Any], tf.Tensor],
  *,
  num_features: int,
  num_classes: int,
) -> ModelSpec:
  """Builds a linear classifier of images on tangent features.

  Trainable are (V, b), float32 [p, C] and [C], drawn as 0. Not trainable are
  (*theta, mean, std), the model's weights and float32 [p] twice; drawn are the
  model's initial weights, 0 and 1.

  Args:
    model: The classifier whose features they are.
    features: (theta, batch) -> z, float32 [rows, p], such as
      `tff_fedfish.tangent_features.build_features` makes.
    num_features: p.
    num_classes: C.

  Returns:
    The model. Its loss is the cross-entropy of the scores, though least squares
    is what they are fitted by.
  """
  theta_specs, _ = model.functional_model.initial_weights
  moments = (tf.TensorSpec([num_features], tf.float32),) * 2
  trainable = (
    tf.TensorSpec([num_features, num_classes], tf.float32),
    tf.TensorSpec([num_classes], tf.float32),
  )

  @tf.function(autograph=False)
  def predict_on_batch(model_weights, x, training):
    del training
    (kernel, bias), (*theta, mean, std) = model_weights
    batch = collections.OrderedDict(x=x, y=_no_labels(x))
    normalized = (features(tuple(theta), batch) - mean) / std
    scores = tf.matmul(normalized, kernel) + bias
    return model.predictions(scores[:, tf.newaxis], x)

  def draw_initial_weights():
    theta, _ = model.draw_initial_weights()
    zeros = tf.zeros([num_features])
    return _zeros(trainable), (*theta, zeros, zeros + 1.0)

  return ModelSpec(
    with_predictions(
      model.functional_model,
      (trainable, (*theta_specs, *moments)),
      predict_on_batch,
    ),
    draw_initial_weights,
  )


def build_full_linearization(
  model: ModelSpec, *, mask_layers: int | None = None
) -> ModelSpec:
  """Builds f(theta) + J delta.

  Trainable is delta, shaped as the model's weights and drawn as 0; theta is not
  trainable and drawn as the model's initial weights. A forward and three
  backward passes make a gradient. Four tensors of the size of the logits of all
  rows, [rows, positions, classes], are in memory: micro-batches bound it.

  Only first derivatives with respect to delta are right.

  Args:
    model: A model with `tapped_logits` and `predictions`.
    mask_layers: Blocks of a transformer, counted from the last, whose weights
      delta changes, >= 1. Other entries of delta are not read, and their
      gradient is 0. None: delta changes all weights.

  Raises:
    ValueError: If the model does not have so many blocks.
  """
  specs, _ = model.functional_model.initial_weights
  masks = None
  if mask_layers is not None:
    masks = _block_masks(model.layers, specs, mask_layers)

  @tf.function(autograph=False)
  def predict_on_batch(model_weights, x, training):
    del training
    delta, theta = map(tuple, model_weights)
    if masks is not None:
      delta = tuple(map(tf.multiply, delta, masks))
    logits = _linearized_logits(
      lambda w: model.tapped_logits((w, ()), x, _no_labels(x), None)[0],
      theta,
      delta,
    )
    return model.predictions(logits, x)

  return ModelSpec(
    with_predictions(model.functional_model, (specs, specs), predict_on_batch),
    lambda: (_zeros(specs), model.draw_initial_weights()[0]),
  )


def _linearized_logits(logits_of, theta, delta):
  """Returns f(theta) + J delta; its gradient g J is one more backward pass.

  Forward-mode derivatives do not pass through `tf.foldl`. The gradient u J is
  linear in u, and its own gradient in the direction delta is J delta.
  """
  # theta exactly; its derivative with respect to delta is the identity.
  weights = tuple(
    w + (d - tf.stop_gradient(d)) for w, d in zip(theta, delta, strict=True)
  )
  with tf.GradientTape(watch_accessed_variables=False) as outer:
    with tf.GradientTape(watch_accessed_variables=False) as inner:
      inner.watch(weights)
      logits = logits_of(weights)
    # Any value will do.
    u = tf.zeros_like(logits)
    outer.watch(u)
    of_weights = inner.gradient(
      logits,
      weights,
      output_gradients=u,
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    # Those of a tied embedding are sparse.
    of_weights = tuple(map(tf.convert_to_tensor, of_weights))
  product = outer.gradient(of_weights, u, output_gradients=delta)
  return logits + tf.stop_gradient(product)


def _block_masks(layers, specs, mask_layers):
  """Returns 1 for entries of the last blocks and 0 for others, to broadcast."""
  num_layers = len({layer.index for layer in layers} - {None})
  if not 1 <= mask_layers <= num_layers:
    raise ValueError(
      f"`mask_layers` must be from 1 to the model's {num_layers} blocks, or "
      f'None, found {mask_layers}.'
    )
  in_last = np.arange(num_layers) >= num_layers - mask_layers
  return [
    np.reshape(in_last, [-1] + [1] * (len(spec.shape) - 1)).astype(np.float32)
    if name.startswith('block/')
    else np.float32(0)
    for name, spec in zip(weight_names(layers), specs, strict=True)
  ]


def _zeros(specs):
  return tuple(tf.zeros(spec.shape) for spec in specs)


def _no_labels(x):
  """Returns labels that only say how many rows there are."""
  return tf.zeros([tf.shape(tf.nest.flatten(x)[0])[0]], tf.int32)
