"""Floating-point operations of a round, counted from the model's shapes.

A product of [m, k] and [k, n] is 2 m k n operations. In work over all weights
every addition, product, division or root of an entry is one. Softmax, norms,
GELU and comparisons are not counted. docs/planning.md has the formulas.
"""

import dataclasses
from typing import Annotated, NamedTuple

from models import transformer_config
from models.model_shapes import num_parameters
from models.transformer_config import TransformerConfig
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.planning import client_steps
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
  """Operations of one round; labels are those of the printed table."""

  local_forward: Annotated[int, 'local steps, forward']
  local_backward: Annotated[int, 'local steps, backward']
  pass_after_training: Annotated[int, 'pass after training']
  """Forward and backward."""
  client_optimizer: Annotated[int, 'client optimizer']
  """Also clipping and noise."""
  client_sums: Annotated[int, 'deltas and sums']
  """The model deltas, and what is added up of them."""
  server: Annotated[int, 'server']
  """The mean and the server optimizer's step."""
  total: Annotated[int, 'in all']
  usual_estimate: Annotated[int, '6 N D, for comparison']
  """Six operations per weight and token, over all passes."""


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
  plain, with_extra = (
    sum(of_row) for of_row in zip(*_local_passes(config, 1), strict=True)
  )
  return with_extra / plain


def _local_passes(config, num_rows):
  """Returns the operations of a forward and of a backward pass of training.

  Each is a pair: of the data loss, and of that with the method's own passes.
  """
  shape = config.transformer_config()
  extra = config.method.cost(config).passes_in_training
  return tuple(
    (one.total, one.total + round(extra * (one.total - one.logits)))
    for one in (forward(shape, num_rows), backward(shape, num_rows))
  )


def of_round(config: TrainConfig) -> RoundFlops:
  """Returns the operations of one round of a run."""
  shape, steps = config.transformer_config(), client_steps.of_config(config)
  num_weights, num_clients = num_parameters(shape), config.cohort_size or 1
  num_rows = num_clients * steps.num_sequences
  num_epochs = config.client_work.num_local_epochs
  (forward_after, one_forward), (backward_after, one_backward) = _local_passes(
    config, num_rows
  )
  num_passes_after = steps.num_passes - num_epochs
  step_cost = config.client_work.step_cost().num_operations
  is_private = config.local_privacy.is_on
  # Once per weight of every client.
  over_weights = num_clients * num_weights
  parts = dict(
    local_forward=num_epochs * one_forward,
    local_backward=num_epochs * one_backward,
    pass_after_training=round(
      num_passes_after * (forward_after + backward_after)
    ),
    # Of DP-SGD a square and its sum, a product and its sum for every row; the
    # noise and a quotient for every step.
    client_optimizer=steps.num_local_steps
    * (step_cost + 2 * is_private)
    * over_weights
    + 4 * is_private * num_epochs * num_rows * num_weights,
    # The delta is a difference; a product and a sum for all that is sent.
    client_sums=(1 + 2 * models_summed(config)) * over_weights,
    # A quotient of two sums.
    server=(1 + config.server.step_cost().num_operations) * num_weights,
  )
  num_tokens = num_rows * shape.sequence_length * steps.num_passes
  return RoundFlops(
    **parts,
    total=sum(parts.values()),
    usual_estimate=round(6 * num_weights * num_tokens),
  )
