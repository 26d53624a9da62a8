"""Wraps models for `tff.learning`; the one file here that knows TFF."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from models import transformer
from models.image_model_config import ImageModelConfig
from models.image_models import IMAGE_CLASSIFIERS, initial_weights
from models.layers import Layer, Tap, layers_of
from models.model_shapes import ModelShape, are_stacked, input_axes
from models.transformer_config import (
  LOGITS_TENSORS,
  TransformerConfig,
  weight_shapes,
)

Weights = tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]

_FLAGS = tf.TensorSpec([None], tf.bool)


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """A FunctionalModel whose initial weights are drawn, not stored.

  Its `initial_weights` are `tf.TensorSpec`s: values would be embedded in the
  graph as constants, which cannot exceed 2 GB.
  """

  functional_model: tff.learning.models.FunctionalModel
  """Forward pass, loss and metrics; its weights are specs."""
  draw_initial_weights: Callable[[], Weights]
  """Called while a graph is built; returns (trainable, non_trainable)."""
  shape: ModelShape | None = None
  """Its shape. None: a model of one's own."""
  makes_logits: tuple[bool, ...] | None = None
  """Flag per trainable tensor: whether it makes a language model's logits, as
  a tied embedding does. None: not known."""
  is_stacked: tuple[bool, ...] | None = None
  """Flag per trainable tensor: whether it holds all layers, along its first
  axis. None: every tensor is of one layer."""
  input_axes: tuple[int | None, ...] | None = None
  """See `models.model_shapes.input_axes`. None: tensors of at least two axes,
  without that of the layers, are matrices [..., inputs, outputs]."""
  features: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None = None
  """(weights, x, y) -> the representation of every target of a batch, float32
  [num_targets, width], and which targets are real, float32 [num_targets], 1 or
  0; not in training. None: the model has no representation."""
  layers: tuple[Layer, ...] | None = None
  """See `models.layers.layers_of`; None: not a classifier of images."""
  tapped_logits: Callable[[Weights, Any, Tap], tf.Tensor] | None = None
  """(weights, x, tap) -> logits of a batch, float32 [rows, classes], not in
  training. The tap is called for every one of `layers`, in the graph of the
  caller. None: the model has no taps."""


def build_language_model(
  config: TransformerConfig,
  *,
  model_seed: int,
  xla: bool = False,
  marks_repeats: bool = False,
) -> ModelSpec:
  """Builds a next-token language model.

  Batches are `OrderedDict(x, y)`: `x` int32 [batch, sequence_length + 1], the
  tokens of each row, padded at its end; `y` int32 [batch], how many of the
  row's sequence_length targets are real. The loss of a batch is the mean over
  its real targets, in nats.

  Args:
    config: The model's shape.
    model_seed: Seed of the initial weights.
    xla: Whether forward and backward pass are compiled by XLA. Numbers then
      differ in their last digits.
    marks_repeats: Whether the batches of its `input_spec` mark the rows that
      came before: `x` is then a mapping that ends with `is_repeated`, bool
      [batch]. The model does not read it.

  Returns:
    The model. Metrics: loss (nats per token), accuracy (fraction of tokens
    whose likeliest prediction is right), num_tokens (targets, over all local
    epochs), num_sequences (rows, the same).

  Example:
    >>> config = TransformerConfig(
    ...   num_layers=1, width=16, num_heads=2, vocabulary_size=256,
    ...   sequence_length=8,
    ... )
    >>> spec = build_language_model(config, model_seed=1)
    >>> trainable, non_trainable = spec.draw_initial_weights()
    >>> sum(int(tf.size(weights)) for weights in trainable)
    7536
  """
  # None, not False: False would keep others from compiling it.
  compiled = tf.function(jit_compile=xla or None, autograph=False)

  @compiled
  def predict_on_batch(model_weights, x, training):
    del training  # There is no dropout.
    losses, correct = transformer.next_token_losses(
      config, model_weights[0], _tokens(x)
    )
    return collections.OrderedDict(token_loss=losses, token_correct=correct)

  @compiled
  def last_hidden(model_weights, x):
    inputs = _tokens(x)[:, :-1]
    outputs = transformer.apply(config, model_weights[0], inputs)
    return tf.cast(outputs, tf.float32)

  def features(model_weights, x, num_targets):
    outputs = last_hidden(model_weights, x)
    mask = _target_mask(outputs, num_targets)
    # [batch, sequence_length, width] -> [batch * sequence_length, width]
    return tf.reshape(outputs, [-1, config.width]), tf.reshape(mask, [-1])

  def per_target(output, num_targets):
    mask = _target_mask(output['token_loss'], num_targets)
    return output['token_loss'], output['token_correct'], mask

  shapes = weight_shapes(config)
  x_spec = tf.TensorSpec([None, config.sequence_length + 1], tf.int32)
  if marks_repeats:
    x_spec = collections.OrderedDict(tokens=x_spec, is_repeated=_FLAGS)
  return ModelSpec(
    _functional_model(shapes, predict_on_batch, per_target, x_spec),
    lambda: (transformer.initial_weights(config, model_seed), ()),
    shape=config,
    makes_logits=tuple(name in LOGITS_TENSORS for name in shapes),
    is_stacked=are_stacked(config),
    input_axes=input_axes(config),
    features=features,
  )


def build_image_model(
  config: ImageModelConfig, *, model_seed: int, marks_repeats: bool = False
) -> ModelSpec:
  """Builds a classifier of images.

  Batches are `OrderedDict(x, y)`: `x` is `OrderedDict(image, noise_seed)`,
  uint8 [batch, height, width, channels] and int32 [batch, 2]; `y` int32
  [batch], the classes. In training the first row's seed decides how images are
  distorted and what is dropped out; otherwise nothing is, and it is not read.
  The loss of a batch is the mean cross-entropy of its rows, in nats.

  Args:
    config: The model's shape.
    model_seed: Seed of the initial weights.
    marks_repeats: As of `build_language_model`.

  Returns:
    The model. Metrics as of a language model, with one target per row.
  """
  classifier = IMAGE_CLASSIFIERS[config.name]

  @tf.function(autograph=False)
  def predict_on_batch(model_weights, x, training):
    images, dropout_seed = x['image'], None
    if training:
      augmentation_seed, dropout_seed = tf.unstack(
        tf.random.experimental.stateless_split(x['noise_seed'][0], 2)
      )
      images = classifier.augment(images, augmentation_seed)
    images = classifier.normalize(images)
    return classifier.logits(
      model_weights[0], images, dropout_seed=dropout_seed
    )

  @tf.function(autograph=False)
  def features(model_weights, x, labels):
    images = classifier.normalize(x['image'])
    outputs = classifier.features(model_weights[0], images)
    return outputs, tf.ones_like(labels, tf.float32)

  # Not a function: what a tap keeps must not leave its graph.
  def tapped_logits(model_weights, x, tap):
    images = classifier.normalize(x['image'])
    return classifier.logits(model_weights[0], images, tap=tap)

  def per_target(logits, labels):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    predictions = tf.argmax(logits, axis=1, output_type=labels.dtype)
    correct = tf.cast(tf.equal(predictions, labels), tf.float32)
    return losses, correct, tf.ones_like(losses)

  x_spec = collections.OrderedDict(
    image=tf.TensorSpec([None, *config.image_shape], tf.uint8),
    noise_seed=tf.TensorSpec([None, 2], tf.int32),
  )
  if marks_repeats:
    x_spec['is_repeated'] = _FLAGS
  shapes = config.weight_shapes()
  return ModelSpec(
    _functional_model(shapes, predict_on_batch, per_target, x_spec),
    lambda: (initial_weights(config, model_seed), ()),
    shape=config,
    input_axes=input_axes(config),
    features=features,
    layers=layers_of(config),
    tapped_logits=tapped_logits,
  )


def with_predictions(
  model: tff.learning.models.FunctionalModel,
  weights: Any,
  predict_on_batch: Callable[..., Any],
  input_spec: Any = None,
) -> tff.learning.models.FunctionalModel:
  """Returns a model with another's loss and metrics.

  Args:
    model: The other model.
    weights: Specs of (trainable, non_trainable).
    predict_on_batch: A `tf.function`; (weights, x, training) -> what the loss
      takes.
    input_spec: None: that of the other.
  """
  return tff.learning.models.FunctionalModel(
    initial_weights=weights,
    predict_on_batch_fn=predict_on_batch,
    loss_fn=model.loss,
    metrics_fns=(
      model.initialize_metrics_state,
      model.update_metrics_state,
      model.finalize_metrics,
    ),
    input_spec=input_spec or model.input_spec,
  )


def _functional_model(shapes, predict_on_batch, per_target, x_spec):
  """Returns a model with the loss and the metrics that all models share.

  `per_target` is (predictions, labels) -> loss of each target in nats, whether
  its likeliest prediction is right and which targets are real, both 1 or 0.
  """
  specs = tuple(tf.TensorSpec(shape, tf.float32) for shape in shapes.values())

  def loss(output, label, sample_weight=None):
    del sample_weight
    losses, _, mask = per_target(output, label)
    return tf.math.divide_no_nan(
      tf.reduce_sum(losses * mask), tf.reduce_sum(mask)
    )

  return tff.learning.models.FunctionalModel(
    initial_weights=(specs, ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    metrics_fns=_metrics(per_target),
    input_spec=collections.OrderedDict(
      x=x_spec, y=tf.TensorSpec([None], tf.int32)
    ),
  )


def _metrics(per_target):
  """Returns the functions that begin, update and finalize the metrics."""

  @tf.function(autograph=False)
  def initialize_metrics():
    # Lists: TFF reads a pair in a tuple as a value range.
    pair, count = [tf.constant(0.0)] * 2, [tf.constant(0, tf.int64)]
    return collections.OrderedDict(
      loss=pair, accuracy=pair, num_tokens=count, num_sequences=count
    )

  @tf.function(autograph=False)
  def update_metrics(state, labels, batch_output, sample_weight=None):
    del sample_weight
    losses, correct, mask = per_target(batch_output.predictions, labels)
    num_tokens = tf.reduce_sum(mask)
    added = collections.OrderedDict(
      loss=[tf.reduce_sum(losses * mask), num_tokens],
      accuracy=[tf.reduce_sum(correct * mask), num_tokens],
      num_tokens=[tf.cast(num_tokens, tf.int64)],
      num_sequences=[tf.shape(labels, tf.int64)[0]],
    )
    return tf.nest.map_structure(tf.add, state, added, check_types=False)

  @tf.function(autograph=False)
  def finalize_metrics(state):
    return collections.OrderedDict(
      # A round without clients has no loss: 0, not NaN, with num_tokens 0.
      loss=tf.math.divide_no_nan(*state['loss']),
      accuracy=tf.math.divide_no_nan(*state['accuracy']),
      num_tokens=state['num_tokens'][0],
      num_sequences=state['num_sequences'][0],
    )

  return initialize_metrics, update_metrics, finalize_metrics


def _tokens(x):
  return x['tokens'] if isinstance(x, Mapping) else x


def _target_mask(outputs, num_targets):
  return tf.sequence_mask(num_targets, outputs.shape[1], dtype=tf.float32)
