"""Settings that compared runs must share, and those that tell them apart.

A configuration falls into the method (its settings and the optimizers, which
every method needs its own of), the seeds, and the setting: all the rest that
may change a number. Runs of equal setting and method that differ in seeds,
other than those of the clients' split and partition, are repetitions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tff_fedfish.config import loading as config_loading
from tff_fedfish.reporting.runs import Run
from tff_fedfish.reporting.settings import flatten

LOCAL_EPOCHS = 'client_work.num_local_epochs'
NUM_ROUNDS = 'training.num_rounds'

_SEEDS = ('seeds.model_seed', 'seeds.cohort_seed', 'seeds.shuffle_seed')
# What a search may choose for each number of local epochs and of rounds.
_RATE = ('learning_rate', 'warmup_rounds', 'schedule_rounds', 'final_fraction')
_CLIENT_OPTIMIZER = (
  *_RATE,
  *('optimizer', 'momentum', 'nesterov', 'beta_1', 'beta_2', 'epsilon'),
  *('weight_decay', 'weight_decay_on', 'learning_rate_schedule'),
  *('max_gradient_norm', 'max_delta_norm'),
)
_RATES = tuple(
  f'{s}.{name}' for s in ('client_work', 'server') for name in _RATE
)
# What makes a method: sections, which end with a dot, and single settings.
_METHOD = (
  *('algorithm.', 'server.'),
  *(f'client_work.{name}' for name in _CLIENT_OPTIMIZER),
)
# What says nothing of the numbers.
_IGNORED = (
  *('schema_version', 'engine.', 'checkpoints.'),
  *('training.max_non_finite_rounds', 'client_work.micro_batch_size'),
)
# What budgets and the scores along the way change of a setting.
_OF_BUDGETS = (LOCAL_EPOCHS, NUM_ROUNDS, 'evaluation.')
_SHORT_NAMES = {
  LOCAL_EPOCHS: 'E',
  NUM_ROUNDS: 'rounds',
  'algorithm.fisher_estimator': 'fisher_estimator',
  'client_work.learning_rate': 'client learning rate',
  'server.learning_rate': 'server learning rate',
}

Key = tuple[tuple[str, str], ...]
"""(name, value) of some settings, sorted by name; can be a dictionary's key."""


def setting_of(run: Run) -> Key:
  """Returns what runs of different methods must share to be compared."""
  return tuple(
    (name, repr(value))
    for name, value in sorted(_settings(run).items())
    if not _is_of(name, (*_METHOD, *_IGNORED, *_SEEDS))
  )


def study_of(run: Run) -> Key:
  """Returns the setting without local epochs, rounds and scores on the way."""
  return tuple(
    pair for pair in setting_of(run) if not pair[0].startswith(_OF_BUDGETS)
  )


def method_of(run: Run) -> Key:
  """Returns the method with the settings that it reads and the optimizers.

  Of a method that cannot be loaded, all settings are those as written.
  """
  return (('method', run.method),) + tuple(
    (name, repr(value))
    for name, value in sorted(_settings(run).items())
    if _is_of(name, _METHOD)
  )


def _settings(run):
  """Returns what the run reads; it may be older than some settings."""
  values = flatten(config_loading.with_defaults(run.config))
  return {name: value for name, value in values.items() if run.reads(name)}


def _is_of(name, settings):
  """Says whether a setting is one of these, or in one of these sections."""
  return name in settings or f'{name.partition(".")[0]}.' in settings


def seeds_of(run: Run) -> tuple[str, ...]:
  """Returns the seeds in which repetitions differ."""
  return tuple(repr(run.setting(name)) for name in _SEEDS)


def labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
  """Returns for each setting the values in which it differs from others.

  Args:
    settings: Values by dotted name.

  Returns:
    Such as 'E = 8, rounds = 120'; '' where nothing differs.
  """
  keys = dict.fromkeys(name for setting in settings for name in setting)
  differing = [
    key for key in keys if len({setting.get(key) for setting in settings}) > 1
  ]
  return [
    ', '.join(
      f'{_SHORT_NAMES.get(key, key)} = {setting.get(key, "(not set)")}'
      for key in differing
    )
    for setting in settings
  ]


def method_names(methods: Sequence[Key]) -> list[str]:
  """Returns unique names: the method, and what tells its variants apart.

  Args:
    methods: Different keys of `method_of`.

  Returns:
    Such as "FedFish (fisher_estimator 'last_epoch')".
  """
  names = []
  for method in methods:
    values = dict(method)
    others = [dict(m) for m in methods if m[0] == method[0]]
    differing = [
      f'{_short_name(name)} {value}'
      for name, value in values.items()
      if any(other.get(name) != value for other in others)
    ]
    name = values['method']
    names.append(f'{name} ({", ".join(differing)})' if differing else name)
  return names


def _short_name(name):
  section, _, setting = name.partition('.')
  # Both sides have an optimizer.
  side = {'client_work': 'client ', 'server': 'server '}.get(section, '')
  return _SHORT_NAMES.get(name, f'{side}{setting}')


def studies(runs: Sequence[Run]) -> list[list[Run]]:
  """Returns runs that differ in method, local epochs and rounds only.

  Args:
    runs: The runs of a report.

  Returns:
    Lists in the order of the runs, each of at least one.
  """
  groups: dict[Any, list[Run]] = {}
  for run in runs:
    groups.setdefault(study_of(run), []).append(run)
  return list(groups.values())


def study_labels(found: Sequence[Sequence[Run]]) -> list[str]:
  """Returns what tells studies apart.

  Args:
    found: All of `studies`.

  Returns:
    Such as 'partition.alpha = 0.1'; '' for a single study.
  """
  return labels([dict(study_of(runs[0])) for runs in found])


def methods(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
  """Returns the methods by name, each with its runs.

  Args:
    runs: Of one of `studies`, repetitions pooled.

  Returns:
    Runs of equal algorithm are one method where they differ in local epochs or
    rounds: learning rates, and over how many rounds they change, may have been
    chosen for each of these. Otherwise they make methods of their own.
  """
  by_algorithm: dict[Key, list[Run]] = {}
  for run in runs:
    key = method_of(run)
    coarse = tuple(pair for pair in key if pair[0] not in _RATES)
    by_algorithm.setdefault(coarse, []).append(run)
  found: dict[Key, list[Run]] = {}
  for coarse, members in by_algorithm.items():
    shapes = {(run.num_local_epochs, run.num_rounds) for run in members}
    for run in members:
      key = coarse if len(shapes) == len(members) else method_of(run)
      found.setdefault(key, []).append(run)
  return list(zip(method_names(list(found)), found.values(), strict=True))
