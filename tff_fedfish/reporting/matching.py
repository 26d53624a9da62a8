"""Settings that compared runs must share, and those that tell them apart.

A configuration falls into the method (its settings and the optimizers, which
every method needs its own of), the seeds, and the setting: all the rest that
may change a number. Runs of equal setting and method that differ in seeds,
other than those of the clients' split and partition, are repetitions.

Dhawan et al. (2024), FedFish, compare local epochs E for R rounds each, and for
R E_reference / E rounds, so that all clients compute as much: two budgets.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tff_fedfish.config import loading as config_loading
from tff_fedfish.reporting.runs import SEEDS, Run
from tff_fedfish.reporting.settings import flatten

FIXED_COMPUTE = 'fixed compute'
FIXED_ROUNDS = 'fixed rounds'
_BUDGETS = (FIXED_COMPUTE, FIXED_ROUNDS)
PAPER_LOCAL_EPOCHS = 4
"""E of Table 3 whose rows are equal in both columns: the paper's reference."""

LOCAL_EPOCHS = 'client_work.num_local_epochs'
NUM_ROUNDS = 'training.num_rounds'

# What a search may choose for each number of local epochs and of rounds.
_RATE = ('learning_rate', 'warmup_rounds', 'schedule_rounds', 'final_fraction')
_CLIENT_OPTIMIZER = (
  *_RATE,
  *('optimizer', 'momentum', 'nesterov', 'beta_1', 'beta_2', 'epsilon'),
  *('weight_decay', 'learning_rate_schedule'),
  *('max_gradient_norm', 'max_delta_norm'),
)
_RATES = tuple(
  f'{s}.{name}' for s in ('client_work', 'server') for name in _RATE
)
# What makes a method: sections, which end with a dot, and single settings.
_METHOD = (
  *('algorithm.', 'local_privacy.', 'server.'),
  *(f'client_work.{name}' for name in _CLIENT_OPTIMIZER),
)
# The last two lines say nothing of the numbers.
_OF_NO_SETTING = (
  *_METHOD,
  *SEEDS,
  *('schema_version', 'engine.', 'checkpoints.'),
  *('training.max_non_finite_rounds', 'client_work.micro_batch_size'),
)
# What makes the clients and their rows.
_CLIENTS = (
  *('data.', 'partition.', 'client_splits.'),
  *('seeds.split_seed', 'seeds.partition_seed'),
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


@dataclasses.dataclass(frozen=True)
class Budgets:
  """The budgets of runs that differ in method, local epochs and rounds."""

  num_rounds: int
  """R: rounds under 'fixed rounds', and those of the reference."""
  local_epochs: int | float
  """E_reference: R rounds with it are the compute that runs under 'fixed
  compute' share."""
  names: tuple[str, ...] = (FIXED_ROUNDS,)
  """Budgets under which there is more than the reference."""

  def holds(self, name: str, run: Run) -> bool:
    """Returns whether a run keeps to `FIXED_COMPUTE` or `FIXED_ROUNDS`."""
    epochs, num_rounds = run.num_local_epochs, run.num_rounds
    if None in (epochs, num_rounds):
      return False
    if name == FIXED_ROUNDS:
      return num_rounds == self.num_rounds
    return num_rounds * epochs == self.num_rounds * self.local_epochs


def setting_of(run: Run) -> Key:
  """Returns what runs of different methods must share to be compared."""
  return _settings(run, _OF_NO_SETTING, is_among=False)


def study_of(run: Run) -> Key:
  """Returns the setting without local epochs, rounds and scores on the way."""
  return tuple(
    pair for pair in setting_of(run) if not pair[0].startswith(_OF_BUDGETS)
  )


def clients_of(run: Run) -> Key:
  """Returns what runs must share to have the same clients with equal rows."""
  return _settings(run, _CLIENTS, is_among=True)


def method_of(run: Run) -> Key:
  """Returns the method with the settings that it reads and the optimizers.

  A method that cannot be loaded has all its settings as written.
  """
  return ('method', run.method), *_settings(run, _METHOD, is_among=True)


def labels(settings: Sequence[Mapping[str, str]]) -> list[str]:
  """Returns the values, by name, in which each setting differs from others.

  Such as 'E = 8, rounds = 120'; '' where nothing differs.
  """
  keys = dict.fromkeys(name for setting in settings for name in setting)
  names = {
    key: _SHORT_NAMES.get(key, key)
    for key in keys
    if len({setting.get(key) for setting in settings}) > 1
  }
  return [
    ', '.join(f'{n} = {s.get(key, "(not set)")}' for key, n in names.items())
    for s in settings
  ]


def method_names(methods: Sequence[Key]) -> list[str]:
  """Returns unique names for different keys of `method_of`.

  They are the method and what tells its variants apart, such as "FedFish
  (fisher_estimator 'last_epoch')".
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

  Lists are in the order of the runs, by what tells them from the other lists,
  such as 'partition.alpha = 0.1'; '' for a single one.
  """
  found = grouped(runs, study_of)
  return dict(zip(labels(list(map(dict, found))), found.values(), strict=True))


def methods(runs: Sequence[Run]) -> dict[str, list[Run]]:
  """Returns the pooled runs of one of `studies` by the method's name.

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


def find_budgets(runs: Sequence[Run]) -> Budgets | None:
  """Returns the budgets that explain most of the runs of one of `studies`.

  Their reference is one of the runs: where several explain as many, one with
  the paper's local epochs, else with the fewest, then the most rounds. None if
  no run says its local epochs and rounds.
  """
  by_shape = {(run.num_local_epochs, run.num_rounds): run for run in runs}
  shapes = [shape for shape in by_shape if None not in shape]
  if not shapes:
    return None

  def rank(shape):
    epochs, num_rounds = shape
    reference = Budgets(num_rounds, epochs)
    num_explained = sum(
      any(reference.holds(name, run) for name in _BUDGETS)
      for run in by_shape.values()
    )
    return -num_explained, epochs != PAPER_LOCAL_EPOCHS, epochs, -num_rounds

  epochs, num_rounds = min(shapes, key=rank)
  reference = Budgets(num_rounds, epochs)
  others = [run for run in runs if run.num_local_epochs != epochs]
  names = tuple(
    n for n in _BUDGETS if any(reference.holds(n, run) for run in others)
  )
  return dataclasses.replace(reference, names=names) if names else reference


def grouped(items: Iterable[Any], key: Callable) -> dict[Any, list]:
  """Returns the items by their key, in the order of first appearance."""
  groups: dict[Any, list] = {}
  for item in items:
    groups.setdefault(key(item), []).append(item)
  return groups


def _settings(run: Run, names: Sequence[str], *, is_among: bool) -> Key:
  """Returns the settings that a run reads, of `names` or of all others."""
  values = flatten(config_loading.with_defaults(run.config))
  return tuple(
    (name, repr(value))
    for name, value in sorted(values.items())
    if run.reads(name)
    and is_among == (name in names or f'{name.partition(".")[0]}.' in names)
  )


def _short_name(name):
  section, _, setting = name.partition('.')
  # Both sides have an optimizer.
  side = {'client_work': 'client ', 'server': 'server '}.get(section, '')
  return _SHORT_NAMES.get(name, f'{side}{setting}')
