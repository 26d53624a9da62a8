"""The frequency of tokens that a language model predicts, and the actual one.

A weighted mean that discards the evidence that a token does not occur predicts
those tokens too often that few clients of the cohort have.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from models import transformer
from models.transformer_config import TransformerConfig
from tff_fedfish.data import sequences as sequences_lib
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.laboratory.cohort_means import Tensors

# Their logits are in memory at a time.
_ROWS_PER_BATCH = 4


class TokenMass:
  """Tokens of scored sequences by how many clients of a cohort have them."""

  def __init__(
    self,
    config: TransformerConfig,
    scored: Sequences,
    cohort: Sequence[Sequences],
  ):
    """Counts the tokens that are predicted, and the clients that have them.

    `scored` has the targets, `cohort` what each of its clients trained on.
    """
    size = config.vocabulary_size
    self._dataset = sequences_lib.to_dataset(scored, _ROWS_PER_BATCH)
    # Targets: the first token of a sequence is not predicted.
    is_target = (
      np.arange(scored.tokens.shape[1] - 1) < scored.num_targets[:, np.newaxis]
    )
    counts = np.bincount(scored.tokens[:, 1:][is_target], minlength=size)
    self._actual = counts / counts.sum()
    holders = np.zeros(size, np.int64)
    for rows in cohort:
      is_real = (
        np.arange(rows.tokens.shape[1]) <= rows.num_targets[:, np.newaxis]
      )
      holders[np.unique(rows.tokens[is_real])] += 1
    # 0, 1, 2 to 3, 4 to 7 and so on.
    self._group = np.frexp(holders)[1]

    @tf.function
    def predicted_sum(weights, dataset):
      total = tf.zeros([size])
      for batch in dataset:
        x, y = batch['x'], batch['y']
        logits = transformer.logits(config, weights, x[:, :-1])
        mask = tf.sequence_mask(y, tf.shape(logits)[1], tf.float32)
        total += tf.einsum('blv,bl->v', tf.nn.softmax(logits), mask)
      return total

    self._predicted_sum = predicted_sum

  def measure(self, weights: Tensors) -> tuple[list[dict[str, Any]], float]:
    """Returns frequencies under a model, and how far they are from the actual.

    Returns:
      A row for each group of tokens: `num_holders`, the clients of the cohort
      that have them, such as '2-3'; `num_tokens` of the vocabulary; `actual`
      and `predicted`, their share of the targets. And the Kullback-Leibler
      divergence of the actual frequencies of all tokens from the predicted
      ones, in nats.
    """
    predicted = self._predicted_sum(weights, self._dataset).numpy()
    predicted = predicted.astype(np.float64) / predicted.sum(dtype=np.float64)
    occurs = self._actual > 0
    actual = self._actual[occurs]
    with np.errstate(divide='ignore'):
      divergence = np.sum(actual * np.log(actual / predicted[occurs]))
    rows = []
    for group in np.unique(self._group):
      members = self._group == group
      rows.append(
        dict(
          num_holders=_label(int(group)),
          num_tokens=int(members.sum()),
          actual=float(self._actual[members].sum()),
          predicted=float(predicted[members].sum()),
        )
      )
    return rows, float(divergence)


def _label(group: int) -> str:
  if group <= 1:
    return str(group)
  return f'{2 ** (group - 1)}-{2**group - 1}'
