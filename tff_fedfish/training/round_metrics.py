"""One row of metrics.csv from what a round returned."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tff_fedfish import communication
from tff_fedfish.runtime import round_options
from tff_fedfish.training.config import TrainConfig

_FAILED_NAMES = {
  reason: f'train/num_failed_clients_{reason}'
  for reason in round_options.FAILURE_REASONS
}
_TRAIN_NAMES = (
  'train/loss',
  'train/accuracy',
  'train/num_tokens',
  'train/num_sequences',
  'train/num_clients',
  'train/num_empty_clients',
  'train/num_non_finite_clients',
  *_FAILED_NAMES.values(),
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
  'evaluation_seconds',
  'tokens_per_second',
  'num_lost_workers',
  'peak_memory_bytes',
)


def metric_names(config: TrainConfig) -> tuple[str, ...]:
  """Returns the columns of metrics.csv for a config."""
  fisher = _FISHER_NAMES if config.algorithm.name == 'fed_fish' else ()
  held_out = _HELD_OUT_NAMES if config.evaluation.num_clients else ()
  return _TRAIN_NAMES + fisher + _COMMUNICATION_NAMES + held_out


def train_metrics(
  metrics: Mapping[str, Any],
  outcome: round_options.RoundOutcome,
  *,
  num_clients: int,
) -> dict[str, float | int | None]:
  """Returns the training columns of one round.

  Args:
    metrics: What the learning process reported.
    outcome: What the engine reported, with what the clients' loaders counted.
    num_clients: Size of the cohort.
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
    'train/num_clients': num_clients,
    'train/num_empty_clients': int(counts['num_empty_clients']),
    'train/num_non_finite_clients': int(counts['num_non_finite_clients']),
    'train/num_dropped_sequences': _total(outcome, 'num_dropped_sequences'),
    'train/num_dropped_tokens': _total(outcome, 'num_dropped_tokens'),
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
  for reason, name in _FAILED_NAMES.items():
    row[name] = outcome.num_failures(reason)
  return row


def _total(outcome, name):
  return sum(counts[name] for counts in outcome.counts.values())


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
