"""The runs of a sweep: every point of the grid under every budget.

Before them come the runs of the search for learning rates.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

from tff_fedfish.config import loading as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import evaluations, grid
from tff_fedfish.sweeping.evaluations import EvaluationRequest
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.learning_rate_search import held_out_share
from tff_fedfish.sweeping.sweep_file import SweepFile

ARMS = 'arms'
"""Directory of the runs that are compared."""

_SEARCH = 'search'
_LOCAL_EPOCHS = 'client_work.num_local_epochs'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRun:
  """One run of a sweep: an arm of the comparison, or a run of the search."""

  name: str
  """Name of its directory, such as 'fed_fish-E4-seed2'."""
  point: Settings
  """Its point of the grid; for a search run only the settings of `per`."""
  rates: Settings = dataclasses.field(default_factory=dict)
  """Learning rates that a search run tries, or that were chosen for an arm."""
  config: TrainConfig
  evaluations: Sequence[EvaluationRequest]
  """Evaluations that follow its training."""
  budgets: tuple[str, ...] = ()
  """Budgets that an arm satisfies. Empty for a search run."""
  num_cells: int = 1
  """Cells of the grid that resolve to its config."""
  held_out_fraction: float = 0.0
  """f of the arms; their search runs hold out more themselves."""

  @property
  def is_arm(self) -> bool:
    """Whether it is compared with others."""
    return bool(self.budgets)

  @property
  def directory(self) -> str:
    """Its directory within that of the sweep."""
    return f'{ARMS if self.is_arm else _SEARCH}/{self.name}'

  @property
  def job_name(self) -> str:
    """A name that no other run of the sweep has."""
    return self.name if self.is_arm else self.directory

  @property
  def num_rounds(self) -> int:
    """Rounds that it is trained for."""
    return self.config.training.num_rounds


def expand(file: SweepFile) -> tuple[list[SweepRun], list[SweepRun]]:
  """Returns the search runs and the arms of a sweep.

  Names settings of the base that no arm reads, on standard error.

  Raises:
    UserError: See `expand_search` and `expand_arms`.
  """
  search_runs, arms = expand_search(file), expand_arms(file)
  unread = file.require_read([arm.config for arm in arms])
  if unread:
    methods = dict.fromkeys(arm.config.algorithm.name for arm in arms)
    config_loading.print_unread(list(methods), unread)
  return search_runs, arms


def expand_arms(file: SweepFile) -> list[SweepRun]:
  """Returns all arms in the order in which they run, with the base's rates.

  Cells of the grid that resolve to one config are one arm, named by the first
  of them.

  Raises:
    UserError: If a setting is unknown or wrong, rounds do not divide, an
      evaluation cannot be made, or the arms would not share their data.
  """
  cells = []
  for point in map(file.without_unread, grid.product(file.axes)):
    for num_rounds, budgets in rounds_by_budget(file, point).items():
      tells_apart = num_rounds if len(file.budgets) > 1 else None
      name = grid.run_name(file.axes, point, tells_apart)
      cells.append(
        SweepRun(
          name=name,
          point=point,
          config=_arm_config(file, name, point, num_rounds),
          evaluations=file.evaluations,
          budgets=budgets,
        )
      )
  file.require_read([arm.config for arm in cells])
  num_cells = collections.Counter(arm.config for arm in cells)
  arms = [
    dataclasses.replace(arm, num_cells=num_cells[arm.config])
    for arm in _first_of_equal(cells)
  ]
  _require_unique(arms)
  for arm in arms:
    _require_evaluations(arm)
  return arms


def rounds_by_budget(
  file: SweepFile, point: Settings
) -> dict[int, tuple[str, ...]]:
  """Returns the rounds of a point of the grid, with the budgets they satisfy.

  'fixed_rounds': R, the base's rounds, whatever the local epochs E.
  'fixed_compute': R E_reference / E rounds, so that every run takes as many
  local steps. Where both coincide, one run serves both.

  Raises:
    UserError: If E is no count, or R E_reference is no multiple of it.
  """
  num_local_epochs = point.get(
    _LOCAL_EPOCHS, file.base.client_work.num_local_epochs
  )
  if type(num_local_epochs) is not int or num_local_epochs < 1:
    raise UserError(
      f'`grid` must give {_LOCAL_EPOCHS!r} ints of at least 1, found '
      f'{num_local_epochs!r}.'
    )
  base_rounds = file.base.training.num_rounds
  total = base_rounds * file.reference_local_epochs
  budgets_of = {}
  for budget in file.budgets:
    num_rounds, rest = base_rounds, 0
    if budget == 'fixed_compute':
      num_rounds, rest = divmod(total, num_local_epochs)
    if rest:
      raise UserError(
        f"`budget` 'fixed_compute' needs rounds x local epochs of the base, "
        f'{base_rounds} x {file.reference_local_epochs} = {total}, to be a '
        f'multiple of every `client_work.num_local_epochs`, but '
        f'{num_local_epochs} does not divide {total}. Choose another '
        '`training.num_rounds`.'
      )
    budgets_of[num_rounds] = (*budgets_of.get(num_rounds, ()), budget)
  return budgets_of


def with_rates(file: SweepFile, arm: SweepRun, rates: Settings) -> SweepRun:
  """Returns an arm with the learning rates that a search chose for it."""
  rates = _read_rates(file, arm.point, rates)
  config = _arm_config(file, arm.name, arm.point | rates, arm.num_rounds)
  return dataclasses.replace(arm, rates=rates, config=config)


def expand_search(file: SweepFile) -> list[SweepRun]:
  """Returns the runs of all searches; none where there is no search.

  Runs of a group that resolve to one config are one. A group whose method
  reads nothing of what is searched has none.

  Raises:
    UserError: If a setting is unknown or wrong, no run reads it, or nobody is
      left to train on.
  """
  search, runs = file.search, []
  for group in search_groups(file):
    of_group = []
    for point in grid.product(search.axes):
      rates = _read_rates(file, group, point)
      name = grid.run_name((*search.per, *search.axes), group | rates)
      arm_config = file.config(group | rates, name)
      settings = group | rates | search.run_settings(arm_config)
      of_group.append(
        SweepRun(
          name=name,
          point=group,
          rates=rates,
          config=file.config(settings, name),
          evaluations=[search.evaluation(arm_config)],
          held_out_fraction=held_out_share(arm_config),
        )
      )
    runs += _first_of_equal(of_group)
  if runs:
    file.require_read([run.config for run in runs], of_search=True)
  runs = [run for run in runs if run.rates]
  _require_unique(runs)
  return runs


def search_groups(file: SweepFile) -> list[Settings]:
  """Returns the settings of every search; none where there is no search."""
  groups = []
  for group in grid.product(file.search.per) if file.search else ():
    group = file.without_unread(group)
    groups += [group] if group not in groups else []
  return groups


def _read_rates(file, settings, rates) -> Settings:
  """Returns those of some rates that the method of the settings reads."""
  read = file.without_unread(settings | rates)
  return {name: value for name, value in rates.items() if name in read}


def _first_of_equal(runs: Iterable[SweepRun]) -> list[SweepRun]:
  """Returns the first of all runs with the same config."""
  by_config = {}
  for run in runs:
    by_config.setdefault(run.config, run)
  return list(by_config.values())


def _arm_config(file, name, settings, num_rounds):
  """Returns an arm's config, which keeps the checkpoint of R / 2 if needed."""
  settings = settings | {'training.num_rounds': num_rounds}
  config = file.config(settings, name)
  if not any('half' in request.at for request in file.evaluations):
    return config
  half, saved = num_rounds // 2, config.checkpoints
  # The largest number of rounds that meets both wishes.
  settings['checkpoints.every_num_rounds'] = math.gcd(
    saved.every_num_rounds, half
  )
  if saved.keep_last:
    settings['checkpoints.keep_every_num_rounds'] = math.gcd(
      saved.keep_every_num_rounds, half
    )
  return file.config(settings, name)


def _require_unique(runs: Sequence[SweepRun]) -> None:
  names = collections.Counter(run.name for run in runs)
  twice = [name for name, count in names.items() if count > 1]
  if twice:
    raise UserError(
      f'Every run must have a name of its own, but {twice[0]!r} would be that '
      'of two. Give their settings values that differ more.'
    )


def _require_evaluations(arm: SweepRun) -> None:
  """Raises UserError if an evaluation is known to fail after the training."""
  requests = arm.evaluations
  if any('half' in request.at for request in requests) and arm.num_rounds % 2:
    raise UserError(
      "`evaluate` asks for 'half' of the rounds, but the run "
      f"{arm.name!r} has {arm.num_rounds}. Leave 'half' out, or choose an "
      'even `training.num_rounds`.'
    )
  twice = evaluations.names_taken_twice(
    requests, arm.num_rounds, arm.config.data.directory
  )
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
