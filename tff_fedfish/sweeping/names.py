"""Short names of runs, such as 'fed_fish-E4-seed2', from their settings.

A name depends on the settings alone, not on what else is in the grid: it stays
when values are added.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from tff_fedfish.sweeping.grid import Axis, Settings

# Where the value alone says what it is, or a letter does.
_LABELS = {
  'algorithm.name': '',
  'algorithm.fisher_estimator': '',
  'algorithm.fisher_reduction': '',
  'algorithm.fisher_normalization': 'normalization',
  'algorithm.client_weighting': '',
  'algorithm.relative_floor': 'floor',
  'algorithm.ragged_correction': 'ragged',
  'algorithm.max_mass_ratio': 'mass_ratio',
  'model.preset': '',
  'server.optimizer': '',
  'client_work.optimizer': 'client',
  'client_work.num_local_epochs': 'E',
  'client_work.learning_rate': 'client_lr',
  'client_work.max_delta_norm': 'delta_norm',
  'server.learning_rate': 'server_lr',
  'cohorts.cohort_size': 'cohort_size',
  'seeds.model_seed': 'seed',
  'seeds.cohort_seed': 'cohort_seed',
  'seeds.shuffle_seed': 'shuffle_seed',
  'seeds.split_seed': 'split_seed',
  'seeds.partition_seed': 'partition_seed',
}
_MAX_VALUE_CHARACTERS = 40


def run_name(
  axes: Sequence[Axis], settings: Settings, num_rounds: int | None = None
) -> str:
  """Returns the name of the run with these settings.

  Args:
    axes: What varies.
    settings: A value for each of their settings; an axis without values is
      left out.
    num_rounds: The run's rounds, where they tell runs apart.
  """
  axes = [axis for axis in axes if axis.names[0] in settings]
  parts = [_axis_label(axis, settings) for axis in axes if not axis.is_of_seeds]
  parts += [] if num_rounds is None else [f'R{num_rounds}']
  parts += [_axis_label(axis, settings) for axis in axes if axis.is_of_seeds]
  return '-'.join(parts)


def _axis_label(axis, settings):
  first, *others = axis.names
  if axis.is_of_seeds:
    # Tied seeds are most often equal: one number then says it all.
    others = [name for name in others if settings[name] != settings[first]]
  return '-'.join(_label(name, settings[name]) for name in [first, *others])


def _label(name: str, value: Any) -> str:
  # A method's own settings need no section before them.
  full = name.removeprefix('algorithm.').replace('.', '_')
  label = _LABELS.get(name, full)
  text = _value_text(value)
  between = '_' if label and not text[0].isdigit() else ''
  return f'{label}{between}{text}'


def _value_text(value):
  if isinstance(value, bool) or value is None:
    return str(value).lower()
  if not isinstance(value, str):
    return repr(value)
  # Of a path the last part says most.
  text = re.sub(r'[^A-Za-z0-9_]+', '_', value.rstrip('/').rpartition('/')[2])
  text = text[:_MAX_VALUE_CHARACTERS]
  if text and text == value:
    return text
  # What was cut off may be all that tells two values apart.
  return f'{text}_{hashlib.sha256(value.encode()).hexdigest()[:6]}'
