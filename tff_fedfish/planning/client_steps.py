"""Steps, sequences and tokens of a client in a round, at most."""

import dataclasses
import math

from tff_fedfish.config.schema import TrainConfig


@dataclasses.dataclass(frozen=True)
class ClientSteps:
  """Work of one client that fills its cap with full sequences."""

  num_sequences: int
  """Sequences of one pass over its data."""
  num_local_steps: int
  """Optimizer steps: batches of a pass times local epochs."""
  num_passes: float
  """Passes that compute gradients: local epochs, and the method's own after
  them."""


def client_steps(config: TrainConfig) -> ClientSteps:
  """Returns a client's steps; one batch stands for data without a bound."""
  work, cost = config.client_work, config.method.cost(config)
  num_sequences = _max_rows(config) or work.local_batch_size
  # A last, smaller batch is kept, unless all are full.
  num_batches = math.ceil(num_sequences / work.local_batch_size)
  return ClientSteps(
    num_sequences=num_sequences,
    num_local_steps=num_batches * work.num_local_epochs,
    num_passes=work.num_local_epochs + cost.passes_after_training,
  )


def max_tokens_per_client(config: TrainConfig) -> int | None:
  """Returns the targets that a client trains on in a round, over all epochs.

  None if the config does not limit a client's sequences.
  """
  num_rows = _max_rows(config)
  if num_rows is None:
    return None
  num_local_epochs = config.client_work.num_local_epochs
  return num_rows * config.targets_per_row * num_local_epochs


def max_tokens_per_round(config: TrainConfig) -> int | None:
  """Returns the same of all clients; None also if their number is unknown."""
  per_client = max_tokens_per_client(config)
  if per_client is None or config.cohort_size is None:
    return None
  return config.cohort_size * per_client


def cap_line(config: TrainConfig, num_read: int, num_cut: int) -> str:
  """Returns the line on the fraction of their data that clients read.

  '' where the cap on a client's rows cuts less than 1 %.

  Args:
    config: The run's config.
    num_read: Rows that clients read.
    num_cut: Rows beyond the cap.
  """
  cap = config.client_work.max_sequences_per_client
  if cap is None or not num_cut > 0.01 * (num_read + num_cut):
    return ''
  percent = 100 * num_read / (num_read + num_cut)
  data = 'images' if config.data.holds_images else 'text'
  return (
    f"clients' {data} read per round: {percent:.2g} % "
    f'(`client_work.max_sequences_per_client` is {cap:,})'
  )


def _max_rows(config):
  work = config.client_work
  is_ragged = config.data.client_batches == 'ragged'
  if work.max_rows is None or is_ragged and not config.local_privacy.is_on:
    return work.max_rows
  return work.max_rows // work.local_batch_size * work.local_batch_size
