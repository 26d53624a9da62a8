"""Steps, sequences and tokens of a client in a round.

All counts are upper bounds: a client is taken to fill its cap with full
sequences.
"""

import dataclasses

from tff_fedfish.config.schema import TrainConfig


@dataclasses.dataclass(frozen=True)
class ClientSteps:
  """Work of one client in a round, at most."""

  num_sequences: int
  """Sequences of one pass over its data."""
  num_local_steps: int
  """Optimizer steps: batches of a pass times local epochs."""
  num_steps_after_training: int
  """Gradients without an optimizer step, in the method's pass after training:
  one per batch of a pass over the data, or one per sequence."""
  batch_size_after_training: int
  """Sequences in such a gradient."""
  num_observed_steps: int
  """Optimizer steps whose gradients are also squared: those of the last local
  epoch, or none."""
  num_passes: int
  """Passes that compute gradients, including that after training."""


def of_config(config: TrainConfig) -> ClientSteps:
  """Returns the steps of a client that fills its cap.

  Args:
    config: The run's config. If a client's sequences have no bound, one batch
      stands for them.
  """
  work, method_cost = config.client_work, config.method.cost(config)
  batch_size, pass_after = work.max_batch_rows, method_cost.pass_after_training
  num_sequences = work.max_rows or work.local_batch_size
  # A last, smaller batch is kept.
  num_batches = -(-num_sequences // work.local_batch_size)
  num_steps_after = {'none': 0, 'batches': num_batches, 'rows': num_sequences}
  return ClientSteps(
    num_sequences=num_sequences,
    num_local_steps=num_batches * work.num_local_epochs,
    num_steps_after_training=num_steps_after[pass_after],
    batch_size_after_training=1 if pass_after == 'rows' else batch_size,
    num_observed_steps=method_cost.squares_last_epoch * num_batches,
    num_passes=work.num_local_epochs + (pass_after != 'none'),
  )


def max_tokens_per_client(config: TrainConfig) -> int | None:
  """Returns the targets that a client trains on in a round, over all epochs.

  None if the config does not limit a client's sequences.
  """
  work = config.client_work
  if work.max_rows is None:
    return None
  return work.max_rows * config.targets_per_row * work.num_local_epochs


def max_tokens_per_round(config: TrainConfig) -> int | None:
  """Returns the targets that a round trains on, over all local epochs.

  None as for a client, and if only the corpus knows the number of clients.
  """
  per_client = max_tokens_per_client(config)
  if per_client is None or config.cohort_size is None:
    return None
  return config.cohort_size * per_client
