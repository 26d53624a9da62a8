"""One row of metrics.csv from what a round returned."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish import communication
from tff_fedfish.data.sequences import Sequences
from tff_fedfish.training.config import TrainConfig

_TRAIN_NAMES = (
  'train/loss',
  'train/accuracy',
  'train/num_tokens',
  'train/num_sequences',
  'train/num_clients',
  'train/num_empty_clients',
  'train/num_non_finite_clients',
  'train/num_dropped_sequences',
  'train/num_dropped_tokens',
  'train/update_is_non_finite',
  'train/update_is_all_zero',
)
_FISHER_NAMES = (
  'train/num_overflowing_clients',
  'train/zero_fisher_mass_fraction',
)
_COMMUNICATION_NAMES = tuple(
  f'communication/{field.name}'
  for field in dataclasses.fields(communication.Communication)
)
_HELD_OUT_NAMES = (
  'held_out/loss',
  'held_out/accuracy',
  'held_out/perplexity',
  'held_out/num_clients',
)
TIMING_NAMES = (
  'seconds',
  'data_seconds',
  'evaluation_seconds',
  'tokens_per_second',
  'peak_memory_bytes',
)


def metric_names(config: TrainConfig) -> tuple[str, ...]:
  """Returns the columns of metrics.csv for a config."""
  fisher = _FISHER_NAMES if config.algorithm.name == 'fed_fish' else ()
  held_out = _HELD_OUT_NAMES if config.evaluation.num_clients else ()
  return _TRAIN_NAMES + fisher + _COMMUNICATION_NAMES + held_out


def train_metrics(
  metrics: Mapping[str, Any], cohort_sequences: Sequence[Sequences]
) -> dict[str, float | int | None]:
  """Returns the training columns of one round.

  Args:
    metrics: What the learning process reported.
    cohort_sequences: What each client of the cohort trained on.
  """
  train = metrics['client_work']['train']
  counts = metrics['client_work']['clients']
  finalizer = metrics['finalizer']
  num_tokens = int(train['num_tokens'])
  row = {
    # Without a token there is no loss, not a loss of 0.
    'train/loss': float(train['loss']) if num_tokens else None,
    'train/accuracy': float(train['accuracy']) if num_tokens else None,
    'train/num_tokens': num_tokens,
    'train/num_sequences': int(train['num_sequences']),
    'train/num_clients': len(cohort_sequences),
    'train/num_empty_clients': int(counts['num_empty_clients']),
    'train/num_non_finite_clients': int(counts['num_non_finite_clients']),
    'train/num_dropped_sequences': sum(
      sequences.num_dropped_sequences for sequences in cohort_sequences
    ),
    'train/num_dropped_tokens': sum(
      sequences.num_dropped_tokens + sequences.num_short_block_tokens
      for sequences in cohort_sequences
    ),
    'train/update_is_non_finite': int(finalizer['update_is_non_finite']),
    'train/update_is_all_zero': int(finalizer['update_is_all_zero']),
  }
  aggregator = metrics['aggregator']
  if 'zero_mass_fraction' in aggregator:
    row['train/num_overflowing_clients'] = int(
      aggregator['num_overflowing_clients']
    )
    row['train/zero_fisher_mass_fraction'] = float(
      aggregator['zero_mass_fraction']
    )
  return row


def communication_metrics(
  round_num: int, config: TrainConfig, num_weights: int
) -> dict[str, int]:
  """Returns the communication columns after `round_num` rounds."""
  spent = communication.after_rounds(
    round_num,
    algorithm=config.algorithm.name,
    cohort_size=config.cohorts.cohort_size,
    num_weights=num_weights,
  )
  return {
    f'communication/{name}': value
    for name, value in dataclasses.asdict(spent).items()
  }
