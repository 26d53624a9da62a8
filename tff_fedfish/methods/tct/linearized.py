"""A linear classifier of images on the tangent features of a model.

Yu et al. (2022), "TCT: Convexifying federated learning using bootstrapped
neural tangent kernels". Of features z, at weights theta that stay as they are,
scores are V^T (z - mean) / std + b. Batches and metrics are those of the model,
which is not in training: there is no dropout and no augmentation.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from models.functional_model import ModelSpec, with_predictions


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
      `tff_fedfish.methods.tct.features.build_features` makes.
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
    return tf.matmul(normalized, kernel) + bias

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


def reading(
  model: ModelSpec, num_features: int, **basis: tf.TensorSpec
) -> ModelSpec:
  """Returns a model with batches of features, and of a basis, as its input.

  Batches are <x=<features=float16 [batch, p], **basis>, y=int32 [batch]>.
  """
  functional_model = model.functional_model
  x = collections.OrderedDict(
    features=tf.TensorSpec([None, num_features], tf.float16), **basis
  )
  return dataclasses.replace(
    model,
    functional_model=with_predictions(
      functional_model,
      functional_model.initial_weights,
      # Never called: clients read stored features.
      functional_model.predict_on_batch,
      collections.OrderedDict(x=x, y=tf.TensorSpec([None], tf.int32)),
    ),
  )


def _zeros(specs):
  return tuple(tf.zeros(spec.shape) for spec in specs)


def _no_labels(x):
  """Returns labels that only say how many rows there are."""
  return tf.zeros([tf.shape(tf.nest.flatten(x)[0])[0]], tf.int32)
