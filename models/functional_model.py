"""Wraps models for `tff.learning`; the one file here that knows TFF."""

import collections
import dataclasses
from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from models import transformer
from models.transformer_config import TransformerConfig, weight_shapes

Weights = tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class ModelSpec:
  """A FunctionalModel whose initial weights are drawn, not stored.

  A FunctionalModel alone embeds its initial weights in the graph as constants,
  which cannot exceed 2 GB. Here `initial_weights` of the functional model holds
  `tf.TensorSpec`s, and `draw_initial_weights` makes the values.
  """

  functional_model: tff.learning.models.FunctionalModel
  """Forward pass, loss and metrics; its weights are specs."""
  draw_initial_weights: Callable[[], Weights]
  """Called while a graph is built; returns (trainable, non_trainable)."""


def build_language_model(
  config: TransformerConfig, *, model_seed: int, xla: bool = False
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

  Returns:
    The model. Metrics: loss (nats per token), accuracy (share of tokens whose
    likeliest prediction is right), num_tokens (targets, over all local
    epochs), num_sequences (rows, likewise).
  """

  # None, not False: False would keep others from compiling it.
  @tf.function(jit_compile=xla or None, autograph=False)
  def predict_on_batch(model_weights, x, training):
    del training  # There is no dropout.
    losses, correct = transformer.next_token_losses(config, model_weights[0], x)
    return collections.OrderedDict(token_loss=losses, token_correct=correct)

  def loss(output, label, sample_weight=None):
    del sample_weight
    mask = _target_mask(output, label)
    return tf.math.divide_no_nan(
      tf.reduce_sum(output['token_loss'] * mask), tf.reduce_sum(mask)
    )

  @tf.function(autograph=False)
  def initialize_metrics():
    # Lists: TFF reads a pair in a tuple as a value range.
    zero = tf.constant(0.0)
    count = tf.constant(0, tf.int64)
    return collections.OrderedDict(
      loss=[zero, zero],
      accuracy=[zero, zero],
      num_tokens=[count],
      num_sequences=[count],
    )

  @tf.function(autograph=False)
  def update_metrics(state, labels, batch_output, sample_weight=None):
    del sample_weight
    output = batch_output.predictions
    mask = _target_mask(output, labels)
    num_tokens = tf.reduce_sum(mask)
    loss_sum = tf.reduce_sum(output['token_loss'] * mask)
    num_correct = tf.reduce_sum(output['token_correct'] * mask)
    num_rows = tf.shape(labels, tf.int64)[0]
    return collections.OrderedDict(
      loss=[state['loss'][0] + loss_sum, state['loss'][1] + num_tokens],
      accuracy=[
        state['accuracy'][0] + num_correct,
        state['accuracy'][1] + num_tokens,
      ],
      num_tokens=[state['num_tokens'][0] + tf.cast(num_tokens, tf.int64)],
      num_sequences=[state['num_sequences'][0] + num_rows],
    )

  @tf.function(autograph=False)
  def finalize_metrics(state):
    return collections.OrderedDict(
      # A round without clients has no loss: 0, not NaN, with num_tokens 0.
      loss=tf.math.divide_no_nan(*state['loss']),
      accuracy=tf.math.divide_no_nan(*state['accuracy']),
      num_tokens=state['num_tokens'][0],
      num_sequences=state['num_sequences'][0],
    )

  specs = tuple(
    tf.TensorSpec(shape, tf.float32) for shape in weight_shapes(config).values()
  )
  model = tff.learning.models.FunctionalModel(
    initial_weights=(specs, ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    metrics_fns=(initialize_metrics, update_metrics, finalize_metrics),
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, config.sequence_length + 1], tf.int32),
      y=tf.TensorSpec([None], tf.int32),
    ),
  )
  return ModelSpec(
    model, lambda: (transformer.initial_weights(config, model_seed), ())
  )


def _target_mask(output, num_targets):
  length = output['token_loss'].shape[1]
  return tf.sequence_mask(num_targets, length, dtype=tf.float32)
