"""SavedModel of a transformer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from models import transformer
from models.transformer_config import TransformerConfig
from tff_fedfish.exporting.weights_module import WeightsModule


class LanguageModel(WeightsModule):
  """Weights and the two functions that a SavedModel offers.

  Both take sequences of any length up to the model's: they fill them up, which
  changes nothing of what precedes, and cut the results off again.
  """

  def __init__(
    self, config: TransformerConfig, weights: Mapping[str, np.ndarray]
  ):
    """Copies the weights into variables.

    Args:
      config: The model's shape.
      weights: By the names and in the order of `weight_shapes(config)`.
    """
    super().__init__('language_model', weights)
    self._config = config

  @tf.function(
    input_signature=[tf.TensorSpec([None, None], tf.int32, name='tokens')]
  )
  def next_token_logits(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the scores of the token to follow each position.

    Args:
      tokens: Int32 [batch, length], length from 1 to sequence_length.

    Returns:
      'logits': float32 [batch, length, vocabulary].
    """
    length = tf.shape(tokens)[1]
    padded = self._fill_up(tokens, self._config.sequence_length)
    logits = transformer.logits(self._config, self.weight_tensors(), padded)
    return {'logits': logits[:, :length]}

  @tf.function(
    input_signature=[
      tf.TensorSpec([None, None], tf.int32, name='tokens'),
      tf.TensorSpec([None], tf.int32, name='num_targets'),
    ]
  )
  def row_losses(
    self, tokens: tf.Tensor, num_targets: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Returns the loss of predicting every token of a row from those before.

    Args:
      tokens: Int32 [batch, length + 1], length from 1 to sequence_length. What
        follows a row's last real token is of no account.
      num_targets: Int32 [batch], real tokens of each row but its first, 0 to
        length.

    Returns:
      'loss': float32 [batch], mean over the row's targets, in nats per token;
      0 for a row without targets.
    """
    max_targets = self._config.sequence_length
    padded = self._fill_up(tokens, max_targets + 1)
    checked = tf.debugging.assert_less_equal(
      num_targets,
      tf.shape(tokens)[1] - 1,
      message='`num_targets` must be less than the length of `tokens`.',
    )
    with tf.control_dependencies([checked]):
      mask = tf.sequence_mask(num_targets, max_targets, dtype=tf.float32)
    losses, _ = transformer.next_token_losses(
      self._config, self.weight_tensors(), padded
    )
    return {
      'loss': tf.math.divide_no_nan(
        tf.reduce_sum(losses * mask, axis=1), tf.reduce_sum(mask, axis=1)
      )
    }

  def signatures(self) -> dict[str, Any]:
    """Returns the functions by the names that they are served under."""
    return {
      'serving_default': self.next_token_logits,
      'next_token_logits': self.next_token_logits,
      'row_losses': self.row_losses,
    }

  def _fill_up(self, tokens, max_length):
    """Returns [batch, max_length], static, as the transformer needs it."""
    missing = max_length - tf.shape(tokens)[1]
    checked = tf.debugging.assert_non_negative(
      missing, message=f'`tokens` must have at most {max_length} columns.'
    )
    with tf.control_dependencies([checked]):
      padded = tf.pad(tokens, [[0, 0], [0, missing]])
    return tf.ensure_shape(padded, [None, max_length])
