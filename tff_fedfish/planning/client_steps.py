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
    config: The run's config. Where a client's sequences have no bound, one
      batch stands for them.
  """
  work, method_cost = config.client_work, config.method.cost(config)
  num_sequences = work.max_rows or work.local_batch_size
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
      1 if pass_after == 'rows' else work.max_batch_rows
    ),
    num_observed_steps=method_cost.squares_last_epoch * num_batches,
    num_passes=work.num_local_epochs + (num_steps > 0),
  )


def max_tokens_per_client(config: TrainConfig) -> int | None:
  """Returns the targets that a client trains on in a round, over all epochs.

  Args:
    config: The run's config.

  Returns:
    The targets of full sequences; None where a client trains on all it has.
  """
  work = config.client_work
  if work.max_rows is None:
    return None
  return work.max_rows * config.targets_per_row * work.num_local_epochs


def max_tokens_per_round(config: TrainConfig) -> int | None:
  """Returns the targets that a round trains on, over all local epochs.

  Args:
    config: The run's config.

  Returns:
    See `max_tokens_per_client`; None also where the corpus says how many
    clients take part.
  """
  per_client = max_tokens_per_client(config)
  if per_client is None or config.cohort_size is None:
    return None
  return config.cohort_size * per_client
