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
  """Forward and backward, and all squares of gradients."""
  client_optimizer: Annotated[int, 'client optimizer']
  """Also clipping and noise."""
  client_sums: Annotated[int, 'deltas and sums']
  """Also the method's terms."""
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
  shape = config.transformer_config()
  plain = forward(shape, 1).total + backward(shape, 1).total
  return 1 + sum(_extra_passes(config, 1)) / plain


def _extra_passes(config, num_rows):
  """Returns operations, forward and backward, of passes without logits."""
  shape, cost = config.transformer_config(), config.method.cost(config)
  passes = forward(shape, num_rows), backward(shape, num_rows)
  counts = cost.extra_forwards, cost.extra_backwards
  return tuple(
    count * (one.total - one.logits)
    for count, one in zip(counts, passes, strict=True)
  )


def of_round(config: TrainConfig) -> RoundFlops:
  """Returns the operations of one round of a run."""
  shape, steps = config.transformer_config(), client_steps.of_config(config)
  num_weights, num_clients = num_parameters(shape), config.cohort_size or 1
  num_rows = num_clients * steps.num_sequences
  num_epochs = config.client_work.num_local_epochs
  one_forward, cost = forward(shape, num_rows), config.method.cost(config)
  one_backward = backward(shape, num_rows).total
  extra_forward, extra_backward = _extra_passes(config, num_rows)
  one_pass_after = one_forward.total + one_backward
  num_squares = steps.num_steps_after_training + steps.num_observed_steps
  step_cost = config.client_work.step_cost().num_operations
  is_private = config.local_privacy.is_on
  # Once per weight of every client.
  over_weights = num_clients * num_weights
  parts = dict(
    local_forward=num_epochs * (one_forward.total + extra_forward),
    local_backward=num_epochs * (one_backward + extra_backward),
    # A square and its sum.
    pass_after_training=(steps.num_passes - num_epochs) * one_pass_after
    + 2 * num_squares * over_weights,
    # Of DP-SGD a square and its sum, a product and its sum for every row; the
    # noise and a quotient for every step.
    client_optimizer=steps.num_local_steps
    * (step_cost + 2 * is_private)
    * over_weights
    + 4 * is_private * num_epochs * num_rows * num_weights,
    # The delta is a difference.
    client_sums=(1 + cost.flops_per_weight) * over_weights,
    # A quotient of two sums.
    server=(1 + config.server.step_cost().num_operations) * num_weights,
  )
  num_tokens = num_rows * shape.sequence_length * steps.num_passes
  return RoundFlops(
    **parts,
    total=sum(parts.values()),
    usual_estimate=6 * num_weights * num_tokens,
  )
