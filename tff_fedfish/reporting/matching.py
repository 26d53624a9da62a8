"""Settings that compared runs must share, and those that tell them apart.

A configuration falls into the method (its settings and the optimizers, which
every method needs its own of), the seeds, and the setting: all the rest that
may change a number. Runs of equal setting and method that differ in seeds,
other than those of the clients' split and partition, are repetitions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config import loading as config_loading
from tff_fedfish.reporting.runs import SEEDS, Run
from tff_fedfish.reporting.settings import flatten

LOCAL_EPOCHS = 'client_work.num_local_epochs'
NUM_ROUNDS = 'training.num_rounds'

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
# The last two lines say nothing of the numbers.
_OF_NO_SETTING = (
  *_METHOD,
  *SEEDS,
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
  return _settings(run, lambda name: not _is_of(name, _OF_NO_SETTING))


def study_of(run: Run) -> Key:
  """Returns the setting without local epochs, rounds and scores on the way."""
  return tuple(
    pair for pair in setting_of(run) if not pair[0].startswith(_OF_BUDGETS)
  )


def method_of(run: Run) -> Key:
  """Returns the method with the settings that it reads and the optimizers.

  A method that cannot be loaded has all its settings as written.
  """
  settings = _settings(run, lambda name: _is_of(name, _METHOD))
  return ('method', run.method), *settings


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
    (_, title), *settings = method
    others = [dict(other) for other in methods if other[0] == method[0]]
    differing = [
      f'{_short_name(name)} {value}'
      for name, value in settings
      if any(other.get(name) != value for other in others)
    ]
    names.append(f'{title} ({", ".join(differing)})' if differing else title)
  return names


def studies(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Returns runs that differ in method, local epochs and rounds only.

  Args:
    runs: The runs of a report.

  Returns:
    Lists in the order of the runs, by what tells them from the other lists,
    such as 'partition.alpha = 0.1'; '' for a single one.
  """
  found = grouped(runs, study_of)
  return dict(zip(labels(list(map(dict, found))), found.values(), strict=True))


def methods(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Returns the runs of each method by its name.

  Args:
    runs: Runs of one of `studies`, repetitions pooled.

  Returns:
    Runs of equal algorithm are one method where they differ in local epochs or
    rounds: learning rates, and over how many rounds they change, may have been
    chosen for each of these. Otherwise they make methods of their own.
  """

  def without_rates(run):
    return tuple(pair for pair in method_of(run) if pair[0] not in _RATES)

  found: dict[Key, list[Run]] = {}
  for coarse, members in grouped(runs, without_rates).items():
    shapes = {(run.num_local_epochs, run.num_rounds) for run in members}
    for run in members:
      key = coarse if len(shapes) == len(members) else method_of(run)
      found.setdefault(key, []).append(run)
  return dict(zip(method_names(list(found)), found.values(), strict=True))


def grouped(items: Iterable[Any], key: Callable) -> dict[Any, list]:
  """Returns the items by their key, in the order of first appearance."""
  groups: dict[Any, list] = {}
  for item in items:
    groups.setdefault(key(item), []).append(item)
  return groups


def _settings(run, is_wanted) -> Key:
  """Returns settings that the run reads; it may be older than some."""
  values = flatten(config_loading.with_defaults(run.config))
  return tuple(
    (name, repr(value))
    for name, value in sorted(values.items())
    if run.reads(name) and is_wanted(name)
  )


def _is_of(name, settings):
  """Says whether a setting is one of these, or in one of these sections."""
  return name in settings or f'{name.partition(".")[0]}.' in settings


def _short_name(name):
  section, _, setting = name.partition('.')
  # Both sides have an optimizer.
  side = {'client_work': 'client ', 'server': 'server '}.get(section, '')
  return _SHORT_NAMES.get(name, f'{side}{setting}')
