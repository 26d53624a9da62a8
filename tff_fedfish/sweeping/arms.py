"""The runs of a sweep: every point of the grid under every budget."""

import collections
import dataclasses
import math
from collections.abc import Sequence

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import budgets, evaluations, grid, names
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.learning_rates import held_out_share
from tff_fedfish.sweeping.sweep_file import SweepFile

_LOCAL_EPOCHS = 'client_work.num_local_epochs'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """One run that is compared with the others."""

  name: str
  """Of its directory, such as 'fed_fish-E4-seed2'."""
  point: Settings
  """Its point of the grid."""
  rates: Settings
  """The learning rates that a search chose; {} without one, or before it."""
  budgets: tuple[str, ...]
  """The budgets that it satisfies."""
  config: TrainConfig
  num_cells: int = 1
  """Cells of the grid that resolve to its config."""

  @property
  def num_rounds(self) -> int:
    """Rounds that it is trained for."""
    return self.config.training.num_rounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRun:
  """One run of a search for learning rates."""

  name: str
  group: Settings
  """Which of the searches it belongs to."""
  rates: Settings
  """The learning rates that it tries."""
  held_out_fraction: float
  """f, that of the arms; it holds out more itself."""
  config: TrainConfig

  @property
  def num_rounds(self) -> int:
    """Rounds that it is trained for."""
    return self.config.training.num_rounds


def expand_arms(file: SweepFile) -> list[Arm]:
  """Returns all arms in the order in which they run, with the base's rates.

  Cells of the grid that resolve to one config are one arm, named by the first
  of them.

  Args:
    file: The sweep.

  Raises:
    UserError: If a setting is unknown or wrong, rounds do not divide, an
      evaluation cannot be made, or the arms would not share their data.
  """
  sweep = file.sweep
  arms = []
  for point in map(file.without_unread, grid.product(sweep.axes)):
    num_local_epochs = point.get(
      _LOCAL_EPOCHS, file.base.client_work.num_local_epochs
    )
    by_rounds = budgets.rounds_by_budget(
      sweep.budgets,
      base_rounds=file.base.training.num_rounds,
      reference_local_epochs=sweep.reference_local_epochs,
      num_local_epochs=_require_count(num_local_epochs),
    )
    for num_rounds, satisfied in by_rounds.items():
      tells_apart = num_rounds if len(sweep.budgets) > 1 else None
      name = names.run_name(sweep.axes, point, tells_apart)
      arms.append(
        Arm(
          name=name,
          point=point,
          rates={},
          budgets=satisfied,
          config=_arm_config(file, name, point, num_rounds),
        )
      )
  file.require_read([arm.config for arm in arms])
  arms = _merged(arms)
  _require_unique([arm.name for arm in arms])
  for arm in arms:
    _require_evaluations(file, arm)
  return arms


def with_rates(file: SweepFile, arm: Arm, rates: Settings) -> Arm:
  """Returns an arm with the learning rates that a search chose for it."""
  rates = _read_rates(file, arm.point, rates)
  config = _arm_config(file, arm.name, arm.point | rates, arm.num_rounds)
  return dataclasses.replace(arm, rates=rates, config=config)


def expand_search(file: SweepFile) -> list[SearchRun]:
  """Returns the runs of all searches; none where there is no search.

  Runs of a group that resolve to one config are one. A group whose method
  reads nothing of what is searched has none.

  Args:
    file: The sweep.

  Raises:
    UserError: If a setting is unknown or wrong, no run reads it, or nobody is
      left to train on.
  """
  runs = [run for group in search_groups(file) for run in _runs_of(file, group)]
  if runs:
    file.require_searched([run.config for run in runs])
  runs = [run for run in runs if run.rates]
  _require_unique([run.name for run in runs])
  return runs


def search_groups(file: SweepFile) -> list[Settings]:
  """Returns the settings of every search; none where there is no search."""
  groups = file.sweep.search.groups() if file.sweep.search else []
  groups = map(file.without_unread, groups)
  return [
    dict(pairs) for pairs in dict.fromkeys(tuple(g.items()) for g in groups)
  ]


def print_unread(file: SweepFile, arms: Sequence[Arm]) -> None:
  """Names settings of the base that no arm reads, on standard error."""
  unread = file.require_read([arm.config for arm in arms])
  if unread:
    names_read = dict.fromkeys(arm.config.algorithm.name for arm in arms)
    config_loading.print_unread(list(names_read), unread)


def _runs_of(file: SweepFile, group: Settings) -> list[SearchRun]:
  """Returns the runs of one search, the first of those of equal configs."""
  search = file.sweep.search
  runs: dict[TrainConfig, SearchRun] = {}
  for point in search.rates():
    rates = _read_rates(file, group, point)
    name = search.run_name(group, rates)
    arm_config = file.config(group | rates, name)
    settings = group | rates | search.run_settings(arm_config)
    run = SearchRun(
      name=name,
      group=group,
      rates=rates,
      held_out_fraction=held_out_share(arm_config),
      config=file.config(settings, name),
    )
    runs.setdefault(run.config, run)
  return list(runs.values())


def _read_rates(file, settings, rates) -> Settings:
  """Returns those of some rates that the method of the settings reads."""
  read = file.without_unread(settings | rates)
  return {name: value for name, value in rates.items() if name in read}


def _merged(arms: Sequence[Arm]) -> list[Arm]:
  """Returns the arms with those of equal configs as one."""
  by_config: dict[TrainConfig, list[Arm]] = {}
  for arm in arms:
    by_config.setdefault(arm.config, []).append(arm)
  return [
    dataclasses.replace(equal[0], num_cells=len(equal))
    for equal in by_config.values()
  ]


def _arm_config(file, name, settings, num_rounds):
  rounds = {'training.num_rounds': num_rounds}
  config = file.config(settings | rounds, name)
  if not any('half' in request.at for request in file.sweep.evaluations):
    return config
  return file.config(settings | rounds | _keeping_half(config), name)


def _keeping_half(config: TrainConfig) -> Settings:
  """Returns settings that save the checkpoint of R / 2 and keep it."""
  half, saved = config.training.num_rounds // 2, config.checkpoints
  keeping = {
    # The largest number of rounds that meets both wishes.
    'checkpoints.every_num_rounds': math.gcd(saved.every_num_rounds, half)
  }
  if saved.keep_last:
    keeping['checkpoints.keep_every_num_rounds'] = math.gcd(
      saved.keep_every_num_rounds, half
    )
  return keeping


def _require_count(value) -> int:
  if type(value) is not int or value < 1:
    raise UserError(
      f'`grid` must give {_LOCAL_EPOCHS!r} ints of at least 1, found {value!r}.'
    )
  return value


def _require_unique(run_names: Sequence[str]) -> None:
  twice = [n for n, c in collections.Counter(run_names).items() if c > 1]
  if twice:
    raise UserError(
      f'Every run must have a name of its own, but {twice[0]!r} would be that '
      'of two. Give their settings values that differ more.'
    )


def _require_evaluations(file: SweepFile, arm: Arm) -> None:
  """Raises UserError if an evaluation is known to fail after the training."""
  requests = file.sweep.evaluations
  own = arm.config.data.directory
  if any('half' in request.at for request in requests) and arm.num_rounds % 2:
    raise UserError(
      "`evaluate` asks for 'half' of the rounds, but the run "
      f"{arm.name!r} has {arm.num_rounds}. Leave 'half' out, or choose an "
      'even `training.num_rounds`.'
    )
  twice = evaluations.names_taken_twice(requests, arm.num_rounds, own)
  if twice:
    raise UserError(
      f'`evaluate` would write the evaluation {twice[0]!r} of the run '
      f'{arm.name!r} twice. Give one of them another `name`.'
    )
  needs_held_out = any(
    request.data is None
    and request.options.get('client_split', 'held_out') == 'held_out'
    for request in requests
  )
  # None: the corpus holds clients out itself.
  if needs_held_out and arm.config.client_splits.held_out_fraction == 0:
    raise UserError(
      '`evaluate` asks for the held-out clients of the corpus of the run '
      f'{arm.name!r}, whose `client_splits.held_out_fraction` is 0. Raise it, '
      'or leave that evaluation out.'
    )
