"""How many steps, sequences and tokens a client goes through in a round.

All counts are upper bounds: of clients that fill their cap with full
sequences. A client with less text costs proportionally less.
"""

import dataclasses

from tff_fedfish.training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class ClientSteps:
  """What one client of a round does, at most."""

  num_sequences: int
  """Sequences of one pass over its data."""
  num_local_steps: int
  """Optimizer steps: batches of a pass times local epochs."""
  num_steps_after_training: int
  """Gradients without an optimizer step, of the method's pass after training:
  the batches of a pass over the data, or its sequences."""
  batch_size_after_training: int
  """Sequences in such a gradient."""
  num_observed_steps: int
  """Optimizer steps whose gradients are also squared: those of the last local
  epoch, or none."""
  num_passes: int
  """Passes that compute gradients, that after training included."""


def of_config(config: TrainConfig) -> ClientSteps:
  """Returns the steps of a client that fills its cap.

  Args:
    config: The run's config.
  """
  work, method_cost = config.client_work, config.method.cost(config)
  num_sequences = work.max_sequences_per_client
  # A last, smaller batch is kept.
  num_batches = -(-num_sequences // work.local_batch_size)
  pass_after = method_cost.pass_after_training
  num_steps = 0
  if pass_after != 'none':
    num_steps = num_sequences if pass_after == 'rows' else num_batches
  return ClientSteps(
    num_sequences=num_sequences,
    num_local_steps=num_batches * work.num_local_epochs,
    num_steps_after_training=num_steps,
    batch_size_after_training=(
      1 if pass_after == 'rows' else min(work.local_batch_size, num_sequences)
    ),
    num_observed_steps=method_cost.squares_last_epoch * num_batches,
    num_passes=work.num_local_epochs + (num_steps > 0),
  )


def max_tokens_per_round(config: TrainConfig) -> int:
  """Returns the targets that a round trains on, over all local epochs.

  Args:
    config: The run's config.
  """
  return (
    config.cohorts.cohort_size
    * config.client_work.max_sequences_per_client
    * config.targets_per_row
    * config.client_work.num_local_epochs
  )
