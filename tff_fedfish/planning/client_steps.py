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
  num_fisher_steps: int
  """Gradients taken for the Fisher diagonal alone, without an optimizer step:
  the batches of a pass, or its sequences with 'example_sq' and 'true'."""
  fisher_batch_size: int
  """Sequences in such a gradient."""
  num_observed_steps: int
  """Optimizer steps whose gradients are squared as well ('last_epoch')."""
  num_passes: int
  """Passes that compute gradients, the Fisher pass included."""


def of_config(config: TrainConfig) -> ClientSteps:
  """Returns the steps of a client that fills its cap.

  Args:
    config: The run's config.
  """
  work, algorithm = config.client_work, config.algorithm
  num_sequences = work.max_sequences_per_client
  # A last, smaller batch is kept.
  num_batches = -(-num_sequences // work.local_batch_size)
  estimator = (
    algorithm.fisher_estimator if algorithm.name == 'fed_fish' else None
  )
  num_fisher_steps = {
    'extra_pass': num_batches,
    'example_sq': num_sequences,
    'true': num_sequences,
  }.get(estimator, 0)
  return ClientSteps(
    num_sequences=num_sequences,
    num_local_steps=num_batches * work.num_local_epochs,
    num_fisher_steps=num_fisher_steps,
    fisher_batch_size=(
      1
      if estimator in ('example_sq', 'true')
      else min(work.local_batch_size, num_sequences)
    ),
    num_observed_steps=num_batches if estimator == 'last_epoch' else 0,
    num_passes=work.num_local_epochs + (num_fisher_steps > 0),
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
