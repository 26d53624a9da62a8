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
  num_features: int,
) -> ModelSpec:
  """Builds a linear classifier of images on tangent features.

  Trainable are (V, b), float32 [p, C] and [C], drawn as 0. Not trainable are
  (*theta, mean, std), the model's weights and float32 [p] twice; drawn are the
  model's initial weights, 0 and 1.

  `features` of the model is (theta, x) -> z, float32 [rows, p], p num_features;
  see `features.py`. The loss is the cross-entropy of the scores, though they
  are fitted by least squares.
  """
  theta_specs, _ = model.functional_model.initial_weights
  moments = (tf.TensorSpec([num_features], tf.float32),) * 2
  num_classes = model.shape.num_classes
  trainable = (
    tf.TensorSpec([num_features, num_classes], tf.float32),
    tf.TensorSpec([num_classes], tf.float32),
  )

  @tf.function(autograph=False)
  def predict_on_batch(model_weights, x, training):
    del training
    (kernel, bias), (*theta, mean, std) = model_weights
    normalized = (features(tuple(theta), x) - mean) / std
    return tf.matmul(normalized, kernel) + bias

  def draw_initial_weights():
    theta, _ = model.draw_initial_weights()
    zeros = tf.zeros([num_features])
    drawn = tuple(tf.zeros(spec.shape) for spec in trainable)
    return drawn, (*theta, zeros, zeros + 1.0)

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
  """Returns a model of batches <x=<features, **basis>, y>.

  `features` is float16 [batch, p], y int32 [batch].
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
