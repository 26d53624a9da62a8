"""Columns of metrics.csv and timings.csv, and their values in a round."""

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_fedfish.config.learning_rates import rate_of_round
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.methods.parts import Column
from tff_fedfish.planning import communication
from tff_fedfish.runtime import round_options

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
_CLIPPED_NAME = 'train/num_clipped_clients'
_COMMUNICATION_NAMES = tuple(
  f'communication/{field.name}'
  for field in dataclasses.fields(communication.Communication)
)
DOWNLINK_BYTES = 'communication/downlink_bytes'
"""Column of a run whose deltas are quantized."""
_HELD_OUT_NAMES = (
  'held_out/loss',
  'held_out/accuracy',
  'held_out/perplexity',
  'held_out/num_clients',
)
VALIDATION_NAMES = ('validation/loss', 'validation/accuracy')
"""Columns of a run with validation clients."""
_PERSONAL_NAMES = ('personal/loss', 'personal/accuracy', 'personal/num_clients')
_BARRIER_NAMES = (
  'barrier/loss',
  'barrier/error',
  'barrier/num_clients',
  'barrier/num_non_finite_clients',
  'barrier/num_failed_clients',
)
ONE_SHOT_NAMES = (
  'one_shot/num_uploads',
  'one_shot/average_accuracy',
  'one_shot/validation_accuracy',
  'one_shot/best_step',
  'one_shot/solve_residual',
)
"""Columns of a method with a solver."""
PRIVACY_NAMES = ('privacy/epsilon_mean', 'privacy/epsilon_max')
"""Columns of a run whose clients add noise."""
_TIMING_NAMES = (
  'seconds',
  'evaluation_seconds',
  'tokens_per_second',
  'num_lost_workers',
  'peak_memory_bytes',
)


def metric_names(config: TrainConfig) -> tuple[str, ...]:
  """Returns the columns of metrics.csv for a config.

  What a run does not measure has none.
  """
  method, evaluation = config.method, config.evaluation
  is_personal = method.personal(config) is not None
  return _names(
    (True, _TRAIN_NAMES),
    (config.client_work.max_delta_norm, [_CLIPPED_NAME]),
    (config.drops_last_batch, ['train/num_clients_below_one_batch']),
    (True, [column.name for column in method.columns(config)]),
    (True, rates_by_column(config, 1)),
    (True, phase_column(config, 1)),
    (method.features is not None, [feature_bytes_name(config)]),
    (method.solve is not None, ONE_SHOT_NAMES),
    (config.local_privacy.adds_noise, PRIVACY_NAMES),
    (True, _COMMUNICATION_NAMES),
    (config.aggregation.is_quantized, [DOWNLINK_BYTES]),
    (evaluation.num_clients and not is_personal, _HELD_OUT_NAMES),
    (config.client_splits.validation_clients_fraction, VALIDATION_NAMES),
    (evaluation.num_clients and is_personal, _PERSONAL_NAMES),
    (evaluation.barrier_every_num_rounds, _BARRIER_NAMES),
  )


def timing_names(config: TrainConfig) -> tuple[str, ...]:
  """Returns the columns of timings.csv for a config."""
  return _names(
    (True, _TIMING_NAMES),
    (config.evaluation.barrier_every_num_rounds, ['barrier_seconds']),
    (config.kept_models, ['client_state_bytes']),
    (config.method.solve is not None, ['solve_seconds', 'upload_bytes']),
  )


def _names(*groups):
  """Returns the names of the groups whose condition is met."""
  return tuple(name for is_met, names in groups if is_met for name in names)


def require_own_columns(config: TrainConfig) -> None:
  """Raises UserError where a method's column has another column's name."""
  names = metric_names(config)
  for column in config.method.columns(config):
    if names.count(column.name) > 1:
      raise UserError(
        f'The columns of {config.algorithm.name!r} must have names of their '
        f'own, but metrics.csv has another {column.name!r}. Rename it.'
      )


def rates_by_column(config: TrainConfig, round_num: int) -> dict[str, float]:
  """Returns the columns of a round, >= 1, with the learning rates that vary."""
  columns = {
    'train/client_learning_rate': config.client_work,
    'train/server_learning_rate': config.server,
  }
  return {
    column: rate_of_round(settings, round_num)
    for column, settings in columns.items()
    if settings.varies_learning_rate
  }


def feature_bytes_name(config: TrainConfig) -> str:
  """Returns the column with the size of the features that clients keep."""
  return f'{config.algorithm.name}/feature_bytes'


def phase_column(config: TrainConfig, round_num: int) -> dict[str, int]:
  """Returns the column of a round, >= 1, with the number of its phase, from 1.

  A run whose rounds are all of one kind has none.
  """
  phase = config.in_round(round_num).phase
  if phase is None:
    return {}
  names = [phase.name for phase in config.phases]
  return {f'{config.algorithm.name}/phase': 1 + names.index(phase.name)}


def train_metrics(
  metrics: Mapping[str, Any],
  outcome: round_options.RoundOutcome,
  *,
  num_clients: int,
  columns: Sequence[Column] = (),
) -> dict[str, float | int | None]:
  """Returns the training columns of a round, the method's own among them.

  Args:
    metrics: Measurements of the learning process.
    outcome: Failures of clients, and counts of their loaders.
    num_clients: Size of the cohort.
    columns: The method's own.
  """
  train = metrics['client_work']['train']
  counts = metrics['client_work']['clients']
  num_tokens = int(train['num_tokens'])
  row = {
    # Without a token there is no loss, not a loss of 0.
    'train/loss': float(train['loss']) if num_tokens else None,
    'train/accuracy': float(train['accuracy']) if num_tokens else None,
    'train/num_tokens': num_tokens,
    'train/num_sequences': int(train['num_sequences']),
    'train/num_clients': num_clients,
  }
  for name in ('num_empty_clients', 'num_non_finite_clients'):
    row[f'train/{name}'] = int(counts[name])
  if 'num_clipped_clients' in counts:
    row[_CLIPPED_NAME] = int(counts['num_clipped_clients'])
  for name in ('update_is_non_finite', 'update_is_all_zero'):
    row[f'train/{name}'] = int(metrics['finalizer'][name])
  for name in ('num_dropped_sequences', 'num_dropped_tokens'):
    row[f'train/{name}'] = 0
  for counts_of_client in outcome.counts.values():
    for name, count in counts_of_client.items():
      row[f'train/{name}'] = row.get(f'train/{name}', 0) + count
  for column in columns:
    try:
      value = functools.reduce(operator.getitem, column.path, metrics)
    except KeyError as error:
      raise UserError(
        f'The column {column.name!r} of the method must name a metric, but '
        f'{"/".join(column.path)} is none: there is no {error}.'
      ) from error
    row[column.name] = np.asarray(value).item()
  for reason, name in _FAILED_NAMES.items():
    row[name] = outcome.num_failures(reason)
  return row


def is_non_finite(row: Mapping[str, float | int | None]) -> bool:
  """Says whether nothing could be learned in a round.

  True if clients had data but none of them a finite update, or if the mean
  update was not finite. False where no client had data.
  """
  without_data = ('train/num_empty_clients', *_FAILED_NAMES.values())
  num_with_data = (row.get('train/num_clients') or 0) - sum(
    row.get(name) or 0 for name in without_data
  )
  if (row.get('train/update_is_non_finite') or 0) > 0:
    return True
  return 0 < num_with_data <= num_rejected_clients(row)


def num_rejected_clients(row: Mapping[str, float | int | None]) -> int:
  """Returns how many clients of a round had no finite update."""
  names = ('train/num_non_finite_clients', 'train/num_overflowing_clients')
  return sum(row.get(name) or 0 for name in names)
