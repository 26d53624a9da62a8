"""Floating-point operations of a round, counted from the model's shapes.

A product of [m, k] and [k, n] is 2 m k n operations. In work over all weights
every addition, product, division or root of an entry is one. Softmax, norms,
GELU and comparisons are not counted. docs/planning.md has the formulas.
"""

import dataclasses
from typing import NamedTuple

from models import transformer_config
from models.model_shapes import num_parameters
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning.client_steps import client_steps
from tff_fedfish.planning.memory import models_summed


class ProductFlops(NamedTuple):
  """Operations of matrix products over some sequences."""

  dense: int
  """Attention's projections and the MLP."""
  attention: int
  """Scores and values."""
  logits: int
  """The softmax over the vocabulary."""

  @property
  def total(self) -> int:
    """All of them."""
    return sum(self)


@dataclasses.dataclass(frozen=True)
class RoundFlops:
  """Operations of one round."""

  local_training: int
  """Products of forward and backward passes in local steps."""
  after_training: int
  """Operations of the method's passes after local training."""
  updates: int
  """Work over all weights: optimizers, clipping, noise, deltas and sums."""

  @property
  def total(self) -> int:
    """All of them."""
    return self.local_training + self.after_training + self.updates


def forward(shape: TransformerConfig, num_rows: int) -> ProductFlops:
  """Returns the products of a forward pass over `num_rows` sequences."""
  num_tokens = num_rows * shape.sequence_length
  blocks = transformer_config.query_blocks(shape.sequence_length)
  num_scores = sum((end - start) * end for start, end in blocks)
  return ProductFlops(
    dense=24 * shape.num_layers * num_tokens * shape.width**2,
    attention=4 * shape.num_layers * num_rows * shape.width * num_scores,
    logits=2 * num_tokens * shape.width * shape.vocabulary_size,
  )


def backward(shape: TransformerConfig, num_rows: int) -> ProductFlops:
  """Returns the products of the gradient of the same by every weight.

  Attention's scores are formed again, and so are logits in chunks.
  """
  dense, attention, logits = forward(shape, num_rows)
  chunk_length = transformer_config.logits_chunk_length(
    shape.sequence_length, shape.vocabulary_size
  )
  return ProductFlops(
    dense=2 * dense,
    attention=attention * 10 // 4,
    logits=logits * (2 if chunk_length is None else 3),
  )


def local_step_factor(config: TrainConfig) -> float:
  """Returns the operations of a local step over those of its data loss."""
  plain, with_extra = _passes(config, 1)
  return with_extra / plain


def round_flops(config: TrainConfig) -> RoundFlops:
  """Returns the operations of one round of a run."""
  shape, steps = config.transformer_config(), client_steps(config)
  num_weights, num_clients = num_parameters(shape), config.cohort_size or 1
  num_rows = num_clients * steps.num_sequences
  num_epochs = config.client_work.num_local_epochs
  plain_pass, local_pass = _passes(config, num_rows)
  is_private = config.local_privacy.is_on
  # Once per weight of every client. DP-SGD adds the noise and a quotient.
  per_step = config.client_work.step_cost().num_operations + 2 * is_private
  # The delta is a difference; a product and a sum for all that is sent.
  per_client = steps.num_local_steps * per_step + 1 + 2 * models_summed(config)
  # A quotient of two sums.
  at_server = 1 + config.server.step_cost().num_operations
  # Of DP-SGD a square and its sum, a product and its sum.
  per_row = 4 * is_private * num_epochs
  return RoundFlops(
    local_training=num_epochs * local_pass,
    after_training=round((steps.num_passes - num_epochs) * plain_pass),
    updates=round(
      num_weights * (num_clients * per_client + num_rows * per_row + at_server)
    ),
  )


def _passes(config, num_rows):
  """Returns the operations of a forward and a backward pass of training.

  First those of the data loss, then those with the method's own passes.
  """
  shape = config.transformer_config()
  extra = config.method.cost(config).passes_in_training
  both = forward(shape, num_rows), backward(shape, num_rows)
  return (
    sum(one.total for one in both),
    sum(one.total + round(extra * (one.total - one.logits)) for one in both),
  )
