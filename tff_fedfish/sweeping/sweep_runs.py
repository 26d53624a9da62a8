"""The runs of a sweep: searches, then every point of the grid and budget."""

import collections
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from tff_fedfish.config import load as config_loading
from tff_fedfish.config.schema import TrainConfig
from tff_fedfish.errors import UserError
from tff_fedfish.sweeping import grid
from tff_fedfish.sweeping.budgets import rounds_by_budget
from tff_fedfish.sweeping.grid import Settings
from tff_fedfish.sweeping.jobs import Job, round_cost
from tff_fedfish.sweeping.sweep_file import EvaluationRequest, SweepFile

ARMS = 'arms'
"""Directory of the runs that are compared."""

_SEARCH = 'search'
_METHOD = 'algorithm.name'
_NUM_ROUNDS = 'training.num_rounds'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRun(Job):
  """One run of a sweep: an arm of the comparison, or a run of the search.

  An arm is named like its directory, a search run with 'search/' before it.
  """

  point: Settings
  """Its point of the grid; for a search run only the settings of `per`."""
  rates: Settings = dataclasses.field(default_factory=dict)
  """Learning rates that a search run tries, or that were chosen for an arm."""
  budgets: tuple[str, ...] = ()
  """Budgets that an arm satisfies. Empty for a search run."""
  num_cells: int = 1
  """Cells of the grid that resolve to its config."""

  @property
  def is_arm(self) -> bool:
    """Whether it is compared with others."""
    return bool(self.budgets)


def expand_arms(
  file: SweepFile, workdir: pathlib.Path = pathlib.Path()
) -> list[SweepRun]:
  """Returns all arms in the order in which they run, with the base's rates.

  Cells of the grid that resolve to one config are one arm, named by the first
  of them. Names settings of the base that no arm reads, on standard error.

  Raises:
    UserError: If a setting is unknown or wrong, rounds do not divide, an
      evaluation cannot be made, or the arms would not share their data.
  """
  cells = collections.defaultdict(list)
  for point in map(file.without_unread, grid.product(file.axes)):
    for num_rounds, budgets in rounds_by_budget(file, point).items():
      tells_apart = num_rounds if len(file.budgets) > 1 else None
      name = grid.run_name(file.axes, point, tells_apart)
      config = file.config(point | {_NUM_ROUNDS: num_rounds}, name)
      cells[config].append(dict(name=name, point=point, budgets=budgets))
  unread = file.require_read(cells)
  _require_unique([of_config[0]['name'] for of_config in cells.values()])
  arms = []
  for config, of_config in cells.items():
    _require_evaluations(file, of_config[0]['name'], config)
    arms.append(
      _run(
        workdir / ARMS,
        config,
        file.evaluations,
        num_cells=len(of_config),
        **of_config[0],
      )
    )
  if unread:
    methods = dict.fromkeys(config.algorithm.name for config in cells)
    config_loading.print_unread(list(methods), unread)
  return arms


def with_rates(file: SweepFile, arm: SweepRun, rates: Settings) -> SweepRun:
  """Returns an arm with the learning rates that a search chose for it."""
  rates = _read_rates(file, arm.point, rates)
  settings = arm.point | rates | {_NUM_ROUNDS: arm.num_rounds}
  config = file.config(settings, arm.name)
  same = {name: getattr(arm, name) for name in ('name', 'point', 'budgets')}
  return _run(arm.run.parent, config, file.evaluations, rates=rates, **same)


def expand_search(
  file: SweepFile, workdir: pathlib.Path = pathlib.Path()
) -> list[SweepRun]:
  """Returns the runs of all searches; none where there is no search.

  Runs of a group that resolve to one config are one. A group whose method
  reads nothing of what is searched has none.

  Raises:
    UserError: If a setting is unknown or wrong, no run reads it, or nobody is
      left to train on or to choose by.
  """
  runs = []
  for group in search_groups(file):
    of_group = {}
    for rates in grid.product(file.search.axes):
      run = search_run(file, group, rates, workdir)
      of_group.setdefault(run.config, run)
    runs += of_group.values()
  if runs:
    file.require_read([run.config for run in runs], of_search=True)
  runs = [run for run in runs if run.rates]
  _require_unique([run.run.name for run in runs])
  return runs


def search_run(
  file: SweepFile, group: Settings, rates: Settings, workdir: pathlib.Path
) -> SweepRun:
  """Returns the run of a search that tries some rates for a group.

  Raises:
    UserError: If a setting is unknown or wrong, or nobody is left to train on
      or to choose by.
  """
  search, rates = file.search, _read_rates(file, group, rates)
  name = grid.run_name((*search.per, *search.axes), group | rates)
  arm = file.config(group | rates, name)
  settings, options = search.run_settings(
    arm, _arms_scored_on_own_rows(file, group)
  )
  return _run(
    workdir / _SEARCH,
    file.config(group | rates | settings, name),
    [EvaluationRequest(name='validation', options=options)],
    name=f'{_SEARCH}/{name}',
    point=group,
    rates=rates,
  )


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


def _run(
  directory: pathlib.Path,
  config: TrainConfig,
  requests: Sequence[EvaluationRequest],
  *,
  name: str,
  **values: Any,
) -> SweepRun:
  """Returns a run whose directory lies in this one."""
  path, workdir = directory / pathlib.Path(name).name, directory.parent
  num_rounds = config.training.num_rounds
  evaluations = {}
  for request in requests:
    output, command = request.command(path, num_rounds, config.data.directory)
    if output in evaluations:
      raise UserError(
        f'`evaluate` would write the evaluation {output.name!r} of the run '
        f'{name!r} twice. Give one of them another `name`.'
      )
    evaluations[output] = command
  return SweepRun(
    name=name,
    run=path,
    num_rounds=num_rounds,
    train=[
      *('train', '--config', str(workdir / 'configs' / f'{name}.py')),
      *('--workdir', str(path)),
    ],
    evaluations=evaluations,
    log=workdir / 'logs' / f'{name}.log',
    config=config,
    evaluates_diverged=True,
    round_cost=round_cost(config),
    **values,
  )


def _require_unique(names: Sequence[str]) -> None:
  twice = [name for name in names if names.count(name) > 1]
  if twice:
    raise UserError(
      f'Every run must have a name of its own, but {twice[0]!r} would be that '
      'of two. Give their settings values that differ more.'
    )


def _arms_scored_on_own_rows(file, group):
  """Returns a group's arms that are scored on clients' own test rows.

  There is one for each method and each setting of the data.
  """
  splits = [request.options.get('client_split') for request in file.evaluations]
  arms = {}
  for point in map(file.without_unread, grid.product(file.axes)):
    key = tuple(
      (name, value)
      for name, value in point.items()
      if name == _METHOD or name.startswith('data.')
    )
    if file.search.group_of(point) == group and key not in arms:
      arms[key] = file.config(point, grid.run_name(file.axes, point))
  return [
    arm
    for arm in arms.values()
    if arm.method.personal(arm) is not None or 'own_test' in splits
  ]


def _problem_of_own_tests(request, arm):
  """Returns why clients cannot be scored on their own test rows, or None."""
  options = request.options
  if request.data is not None:
    return f'but its `data` is {request.data!r}: it must be None'
  if options.get('barrier'):
    return 'where there is no barrier: leave `barrier` out'
  if any(options.get('fractions', ())):
    return 'and their models are not fine-tuned: `fractions` must be 0'
  if not (arm.row_fractions[1] or arm.partition.has_twins):
    return 'but it has none: set `client_splits.test_fraction`'
  return None


def _require_evaluations(file: SweepFile, name: str, arm: TrainConfig) -> None:
  """Raises UserError if an evaluation is known to fail after the training."""
  for request in file.evaluations:
    split = request.options.get('client_split', 'held_out')
    is_personal = arm.method.personal(arm) is not None
    if is_personal or split == 'own_test':
      if problem := _problem_of_own_tests(request, arm):
        raise UserError(
          f'`evaluate` scores the clients of the run {name!r} on their own '
          f'test rows, {problem}. Correct it, or leave that evaluation out.'
        )
      continue
    needs_held_out = request.data is None and split == 'held_out'
    # None: the corpus holds clients out itself.
    if needs_held_out and arm.client_splits.held_out_fraction == 0:
      raise UserError(
        '`evaluate` asks for the held-out clients of the corpus of the run '
        f'{name!r}, whose `client_splits.held_out_fraction` is 0. Raise it, '
        'or leave that evaluation out.'
      )
