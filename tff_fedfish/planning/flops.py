"""Floating-point operations of a round, counted from the model's shapes.

A product of [m, k] and [k, n] is 2 m k n operations. For R rows of S tokens
(T = R S), width d, V ids and L layers:

  dense layers   forward L 24 T d^2   backward L 48 T d^2
  attention      forward L 4 R d P    backward L 10 R d P
  logits         forward 2 T d V      backward 4 T d V, or 6 T d V in chunks

P sums rows times columns over the blocks of `models/attention.py`: a block of
queries meets the keys up to its last query, so that P lies between half of S^2
and all of it. Attention has two products forward and five backward, where the
scores are formed again; so are logits that are formed in chunks.

Softmax, norms and GELU are left out: what they cost is memory traffic. Of what
runs over all weights, every addition, product, division or root of an entry is
one operation; comparisons (the guard against non-finite numbers) are none.
"""

import dataclasses

from models.transformer_config import TransformerConfig, num_parameters
from tff_fedfish.optimizers import cost
from tff_fedfish.planning import client_steps
from tff_fedfish.training.config import TrainConfig

# As in models/attention.py and models/token_loss.py, which import TensorFlow;
# a test compares them.
QUERY_BLOCK_LENGTH = 256
MAX_LOGITS_BYTES = 64 * 2**20

# Operations per weight; those of optimizers are in optimizers/cost.py.
# Squaring a gradient and adding it up.
_SQUARE = 2
# delta = theta_G - theta_i.
_DELTA = 1
# The server's quotient of two sums.
_QUOTIENT = 1


@dataclasses.dataclass(frozen=True)
class ProductFlops:
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
    return self.dense + self.attention + self.logits

  def __add__(self, other: 'ProductFlops') -> 'ProductFlops':
    """Returns the operations of both."""
    return ProductFlops(
      self.dense + other.dense,
      self.attention + other.attention,
      self.logits + other.logits,
    )


@dataclasses.dataclass(frozen=True)
class RoundFlops:
  """Operations of one round in which every client fills its cap."""

  local_forward: int
  """Products of all local steps, forward."""
  local_backward: int
  """The same, backward."""
  pass_after_training: int
  """Products of the method's pass after training, forward and backward, and the
  squares of gradients, those of local steps included; where labels are drawn,
  the logits once more."""
  client_optimizer: int
  """Steps of the client optimizer."""
  client_sums: int
  """Deltas, what clients make of them, and their sums."""
  server: int
  """The mean and the server optimizer's step."""
  total: int
  """All of these."""
  usual_estimate: int
  """6 N D: six operations per weight and token, over all passes."""


def forward(config: TransformerConfig, num_rows: int) -> ProductFlops:
  """Returns the products of a forward pass and its loss.

  Args:
    config: The model's shape.
    num_rows: Sequences of `config.sequence_length` tokens.
  """
  num_tokens = num_rows * config.sequence_length
  block_products = sum(
    rows * columns for rows, columns in query_blocks(config.sequence_length)
  )
  return ProductFlops(
    dense=config.num_layers * 24 * num_tokens * config.width**2,
    attention=config.num_layers * 4 * num_rows * config.width * block_products,
    logits=2 * num_tokens * config.width * config.vocabulary_size,
  )


def backward(config: TransformerConfig, num_rows: int) -> ProductFlops:
  """Returns the products of the gradient of the same by every weight."""
  products = forward(config, num_rows)
  return ProductFlops(
    dense=2 * products.dense,
    attention=products.attention * 10 // 4,
    logits=products.logits * (3 if forms_logits_in_chunks(config) else 2),
  )


def query_blocks(sequence_length: int) -> list[tuple[int, int]]:
  """Returns (rows, columns) of each block of attention scores."""
  return [
    (end - start, end)
    for start in range(0, sequence_length, QUERY_BLOCK_LENGTH)
    for end in [min(start + QUERY_BLOCK_LENGTH, sequence_length)]
  ]


def forms_logits_in_chunks(config: TransformerConfig) -> bool:
  """Says whether a sequence's logits are too large to be kept."""
  num_bytes = 4 * config.sequence_length * config.vocabulary_size
  return num_bytes > MAX_LOGITS_BYTES


def of_round(config: TrainConfig) -> RoundFlops:
  """Returns the operations of one round of a run.

  Args:
    config: The run's config.
  """
  shape, steps = config.transformer_config(), client_steps.of_config(config)
  cohort_size = config.cohort_size or 1
  num_weights = num_parameters(shape)
  num_rows = cohort_size * steps.num_sequences
  num_epochs = config.client_work.num_local_epochs
  one_forward = forward(shape, num_rows)
  one_backward = backward(shape, num_rows).total
  num_passes_after = steps.num_passes - num_epochs
  num_squares = steps.num_steps_after_training + steps.num_observed_steps
  parts = dict(
    local_forward=num_epochs * one_forward.total,
    local_backward=num_epochs * one_backward,
    pass_after_training=num_passes_after
    * (
      one_forward.total
      + one_backward
      + config.algorithm.samples_labels * one_forward.logits
    )
    + cohort_size * num_squares * _SQUARE * num_weights,
    client_optimizer=cohort_size
    * steps.num_local_steps
    * cost.of_settings(config.client_work).num_operations
    * num_weights,
    client_sums=cohort_size
    * (_DELTA + config.method.cost(config).flops_per_weight)
    * num_weights,
    server=(_QUOTIENT + cost.of_settings(config.server).num_operations)
    * num_weights,
  )
  return RoundFlops(
    **parts,
    total=sum(parts.values()),
    usual_estimate=6
    * num_weights
    * num_rows
    * shape.sequence_length
    * steps.num_passes,
  )
